//! Child processes: in a namespace, in a cgroup, ended with their owner.

use crate::{
    cgroup::Cgroup,
    cleanup::{self, Guard},
    hang, late,
    netns::Namespace,
};
use anyhow::{Context, Result};
use nix::{
    sched::{CloneFlags, setns},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Where a command is to run.
pub trait Spawn {
    /// In the network namespace. Only the network changes: `/sys/fs/bpf` and `/proc` stay.
    fn netns(&mut self, namespace: &Namespace) -> Result<&mut Self>;
    /// In the cgroup.
    fn cgroup(&mut self, cgroup: &Cgroup) -> Result<&mut Self>;
    /// Starts it; it is killed when the returned value is dropped, or with this process.
    fn spawn_owned(&mut self) -> Result<Process>;
}

impl Spawn for Command {
    fn netns(&mut self, namespace: &Namespace) -> Result<&mut Self> {
        let file = namespace.open()?;
        // SAFETY: setns(2) is async-signal-safe; the file was opened before the fork.
        Ok(unsafe { self.pre_exec(move || Ok(setns(&file, CloneFlags::CLONE_NEWNET)?)) })
    }

    fn cgroup(&mut self, cgroup: &Cgroup) -> Result<&mut Self> {
        let path = cgroup.path().join("cgroup.procs");
        let file = OpenOptions::new().write(true).open(&path);
        let mut file: File = file.with_context(|| format!("open {}", path.display()))?;
        // SAFETY: write(2) is async-signal-safe; 0 stands for the writing process.
        Ok(unsafe { self.pre_exec(move || file.write_all(b"0")) })
    }

    fn spawn_owned(&mut self) -> Result<Process> {
        // SAFETY: prctl(2) and setpgid(2) are async-signal-safe. The process group keeps the
        // Ctrl-C of a terminal from reaching the child before its owner has cleaned up.
        unsafe {
            self.process_group(0).pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                Ok(())
            })
        };
        let program = PathBuf::from(self.get_program());
        let (child, guard) = cleanup::create(|| {
            let child = self.spawn().with_context(|| format!("start {}", program.display()))?;
            let child = Arc::new(Mutex::new(child));
            let doomed = Arc::clone(&child);
            Ok((child, move || end(&doomed)))
        })?;
        Ok(Process { child, _guard: guard })
    }
}

/// A running child.
#[derive(Debug)]
pub struct Process {
    child: Arc<Mutex<Child>>,
    _guard: Guard,
}

impl Process {
    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child().id()
    }

    /// Its handle, to take the pipes.
    pub fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let child = self.child();
        kill(Pid::from_raw(child.id().cast_signed()), signal).context("send a signal")
    }

    /// Waits until it has ended by itself.
    pub fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        late::poll(limit, || {
            let status = self.child().try_wait()?;
            status.with_context(|| late!("process {} still runs after {limit:?}", self.id()))
        })
        .with_context(|| format!("threads of the process:\n{}", hang::stacks(self.id())))
    }
}

/// Kills and reaps. The id stays ours until it is reaped, so no other process is hit.
fn end(child: &Mutex<Child>) {
    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
    if let Ok(None) = child.try_wait() {
        // Both fail only when the process has just ended.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The binary `name` of this workspace: `<NAME>_BIN` if set, else beside the running program.
pub fn binary(name: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(format!("{}_BIN", name.to_uppercase())) {
        return Ok(path.into());
    }
    let program = std::env::current_exe().context("path of the running program")?;
    // Test programs lie one level deeper than binaries.
    let folders = program.ancestors().skip(1).take(2);
    let mut candidates = folders.map(|folder| folder.join(name));
    candidates.find(|path| path.is_file()).with_context(|| {
        format!("{name} is not built: run `cargo build --workspace`, or set {}_BIN", name.to_uppercase())
    })
}

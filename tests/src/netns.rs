//! Network namespaces with names, as `ip netns` makes them.

use crate::{
    cleanup::{self, Guard},
    mounts,
    process::Spawn,
};
use anyhow::{Context, Result, bail};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
};
use std::{
    fs::{self, File},
    io::Write,
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

const FOLDER: &str = "/run/netns";

/// A network namespace, removed on drop with all its interfaces.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    /// None, where another process removes it.
    _guard: Option<Guard>,
}

impl Namespace {
    /// Makes one with a unique name that contains `label`. Duplicate address detection
    /// is off, so that addresses are usable at once; redirects are off, so that every
    /// packet keeps taking the way the routes say.
    pub fn create(label: &str) -> Result<Self> {
        let name = cleanup::unique(label);
        let path = Path::new(FOLDER).join(&name);
        let ((), guard) = cleanup::create(|| {
            fs::create_dir_all(FOLDER)?;
            File::create(&path)?;
            let doomed = path.clone();
            let remove = move || {
                mounts::unmount_below(&doomed);
                cleanup::report(fs::remove_file(&doomed).map_err(Into::into), &doomed);
            };
            match bind_new_namespace(&path) {
                Ok(()) => Ok(((), remove)),
                Err(error) => {
                    remove();
                    Err(error.context(format!("make network namespace {name}")))
                }
            }
        })?;
        let namespace = Self { name, _guard: Some(guard) };
        namespace.sysctl(&[
            ("ipv6/conf/all/accept_dad", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/dad_transmits", "0"),
            ("ipv6/conf/default/router_solicitations", "0"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
        ])?;
        Ok(namespace)
    }

    /// One that another process has made, and removes.
    pub fn of_another(name: &str) -> Self {
        Self { name: name.to_owned(), _guard: None }
    }

    /// Its name below `/run/netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it.
    pub fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    /// Opens the file that stands for it.
    pub fn open(&self) -> Result<File> {
        File::open(self.path()).with_context(|| format!("open network namespace {}", self.name))
    }

    /// Runs `work` on a thread inside; the calling thread stays where it is.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = self.open()?;
        inside(&file, work)
    }

    /// Writes files below `/proc/sys/net`.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.run(|| {
            for (name, value) in settings {
                let path = Path::new("/proc/sys/net").join(name);
                fs::write(&path, value).with_context(|| format!("set {} to {value}", path.display()))?;
            }
            Ok(())
        })
    }

    /// Runs `ip -batch` with these lines inside.
    pub fn ip(&self, lines: &str) -> Result<()> {
        self.feed(Command::new("ip").args(["-batch", "-"]), lines)
    }

    /// The same, where the family does not follow from an address.
    pub fn ip6(&self, lines: &str) -> Result<()> {
        self.feed(Command::new("ip").args(["-6", "-batch", "-"]), lines)
    }

    /// Runs `nft -f` with this rule set inside.
    pub fn nft(&self, rules: &str) -> Result<()> {
        self.feed(Command::new("nft").args(["-f", "-"]), rules)
    }

    /// Runs a command inside and returns its standard output; a failure is an error.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        let output =
            command.args(arguments).netns(self)?.output().with_context(|| format!("start {program}"))?;
        if !output.status.success() {
            bail!(
                "{program} {arguments:?} in {}: {}",
                self.name,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn feed(&self, command: &mut Command, input: &str) -> Result<()> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.netns(self)?.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start {program}"))?;
        if let Some(mut pipe) = child.stdin.take() {
            pipe.write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            bail!("{program} in {}: {}\n{input}", self.name, complaint.trim());
        }
        Ok(())
    }
}

/// Runs `work` on a thread inside the namespace that `file` stands for.
pub fn inside<T: Send>(file: &File, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    on_a_thread(|| {
        setns(file, CloneFlags::CLONE_NEWNET).context("enter a network namespace")?;
        work()
    })
}

fn bind_new_namespace(path: &Path) -> Result<()> {
    on_a_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).context("unshare (are you root?)")?;
        mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        Ok(())
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

//! Removal of what the kernel would otherwise keep: namespaces, mounts, cgroups,
//! directories, processes.
//!
//! Things are made through [`create`], which couples making with a removal. The removal
//! runs when the [`Guard`] is dropped or when SIGINT or SIGTERM arrives, whichever comes
//! first, and exactly once. A process that was killed outright leaves things behind;
//! [`sweep`] of the next one finds them by the process id in their names.

use crate::hang;
use anyhow::{Context, Result};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::{
    fs,
    io::Read,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
    thread,
};

/// By which the runner ends a test that takes too long.
const HUNG: Signal = Signal::SIGUSR1;

type Removal = Box<dyn FnOnce() + Send>;

static PENDING: Mutex<Vec<(u64, Removal)>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(1);
static SIGNAL_PIPE: AtomicI32 = AtomicI32::new(-1);

/// Runs the removal of one thing when dropped.
#[derive(Debug)]
pub struct Guard(u64);

impl Drop for Guard {
    fn drop(&mut self) {
        let removal = {
            let mut pending = pending();
            let place = pending.iter().position(|(id, _)| *id == self.0);
            place.map(|place| pending.remove(place).1)
        };
        if let Some(removal) = removal {
            removal();
        }
    }
}

fn pending() -> MutexGuard<'static, Vec<(u64, Removal)>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes something and registers its removal as one step: a signal either finds it
/// registered or keeps it from being made.
pub fn create<T, R>(make: impl FnOnce() -> Result<(T, R)>) -> Result<(T, Guard)>
where
    R: FnOnce() + Send + 'static,
{
    start();
    let mut pending = pending();
    let (made, removal) = make()?;
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    pending.push((id, Box::new(removal)));
    Ok((made, Guard(id)))
}

/// A name no other process and no earlier call uses.
pub fn unique(label: &str) -> String {
    format!("{PREFIX}{}-{}-{label}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Every name made by [`unique`] starts with this, followed by the process id.
const PREFIX: &str = "sh";

/// A new directory below `/run`, removed with its contents.
pub fn directory(label: &str) -> Result<(PathBuf, Guard)> {
    directory_in(Path::new("/run"), label)
}

/// The same below another folder, for what is too much for a file system in memory.
pub fn directory_in(folder: &Path, label: &str) -> Result<(PathBuf, Guard)> {
    let path = folder.join(unique(label));
    create(|| {
        for path in leftovers(folder) {
            remove(&path);
        }
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        let doomed = path.clone();
        Ok((path, move || report(fs::remove_dir_all(&doomed).map_err(Into::into), &doomed)))
    })
}

/// Says on standard error what could not be removed; there is nobody to return it to.
/// What is gone already was swept by another process.
pub(crate) fn report(result: Result<()>, what: &Path) {
    let is_gone = |error: &anyhow::Error| {
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        kind == Some(std::io::ErrorKind::NotFound)
    };
    if let Some(error) = result.err().filter(|error| !is_gone(error)) {
        eprintln!("could not remove {}: {error:#}", what.display());
    }
}

/// Sweeps what killed processes left and starts to listen for signals, once.
fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        sweep();
        if let Err(error) = listen_for_signals() {
            eprintln!("signals will not clean up: {error:#}");
        }
    });
}

extern "C" fn on_signal(number: libc::c_int) {
    let byte = number as u8;
    // SAFETY: write(2) is async-signal-safe and the buffer is one byte on this stack.
    unsafe { libc::write(SIGNAL_PIPE.load(Ordering::Relaxed), (&raw const byte).cast(), 1) };
}

fn listen_for_signals() -> Result<()> {
    let (mut reader, writer) = std::io::pipe()?;
    let writer = OwnedFd::from(writer);
    SIGNAL_PIPE.store(writer.as_raw_fd(), Ordering::Relaxed);
    // The handler needs the descriptor for as long as the process lives.
    std::mem::forget(writer);
    let action = SigAction::new(SigHandler::Handler(on_signal), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, HUNG] {
        // SAFETY: the handler only writes to a pipe.
        unsafe { sigaction(signal, &action) }?;
    }
    thread::spawn(move || {
        let mut number = [0];
        if reader.read_exact(&mut number).is_ok() {
            if i32::from(number[0]) == HUNG as i32 {
                hang::tell_all();
            }
            // Holding the lock to the end keeps other threads from making more.
            let mut pending = pending();
            while let Some((_, removal)) = pending.pop() {
                removal();
            }
            std::process::exit(128 + i32::from(number[0]));
        }
    });
    Ok(())
}

/// Removes what processes that no longer exist have left behind.
fn sweep() {
    for folder in ["/run/netns", "/run"] {
        for path in leftovers(Path::new(folder)) {
            remove(&path);
        }
    }
    if let Ok(root) = crate::cgroup::root() {
        for path in leftovers(&root) {
            report(crate::cgroup::remove(&path), &path);
        }
    }
}

fn remove(path: &Path) {
    crate::mounts::unmount_below(path);
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    report(removed.map_err(Into::into), path);
}

fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| owner_is_gone(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect()
}

fn owner_is_gone(name: &str) -> bool {
    let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).map(|(pid, _)| pid);
    pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leftovers_of_dead_processes_are_swept() {
        assert!(!owner_is_gone(&unique("x")));
        assert!(owner_is_gone("sh999999999-1-node"));
        for foreign in ["shm", "sh-1", "shunt-1-x", "netns"] {
            assert!(!owner_is_gone(foreign), "{foreign}");
        }
    }
}

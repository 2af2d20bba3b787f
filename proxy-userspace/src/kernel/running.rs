//! Whether an agent runs: it holds a lock on the directory of its pins, which the kernel takes
//! from it however it ends. Agents share it, for one may take over from another.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use super::KernelError;

/// Says that an agent runs, for as long as it is held.
#[derive(Debug)]
pub struct Running {
    _lock: Flock<File>,
}

/// Keeps agents from being told from none, for as long as it is held: that of whoever removes
/// their pins.
#[derive(Debug)]
pub struct Stopped {
    _lock: Flock<File>,
}

impl Running {
    /// Says so about the agent with the pins below `root`, which exists.
    ///
    /// # Errors
    /// When the directory cannot be locked, for its pins are just being removed.
    pub fn tell(root: &Path) -> Result<Self, KernelError> {
        match lock(root, FlockArg::LockSharedNonblock)? {
            Ok(lock) => Ok(Self { _lock: lock }),
            Err(errno) => Err(cannot_lock(root, errno)),
        }
    }
}

impl Stopped {
    /// None if an agent with the pins below `root` runs. Without the directory there is none, and
    /// nothing to hold.
    ///
    /// # Errors
    /// When that cannot be told.
    pub fn ensure(root: &Path) -> Result<Option<Option<Self>>, KernelError> {
        if !root.exists() {
            return Ok(Some(None));
        }
        match lock(root, FlockArg::LockExclusiveNonblock)? {
            Ok(lock) => Ok(Some(Some(Self { _lock: lock }))),
            Err(Errno::EWOULDBLOCK) => Ok(None),
            Err(errno) => Err(cannot_lock(root, errno)),
        }
    }
}

/// Whether an agent with the pins below `root` runs.
///
/// # Errors
/// When that cannot be told.
pub fn is_running(root: &Path) -> Result<bool, KernelError> {
    Ok(Stopped::ensure(root)?.is_none())
}

fn lock(root: &Path, how: FlockArg) -> Result<Result<Flock<File>, Errno>, KernelError> {
    let file = File::open(root).map_err(|source| KernelError::File {
        what: "cannot open",
        path: PathBuf::from(root),
        source,
    })?;
    Ok(Flock::lock(file, how).map_err(|(_, errno)| errno))
}

fn cannot_lock(root: &Path, errno: Errno) -> KernelError {
    KernelError::File { what: "cannot lock", path: PathBuf::from(root), source: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_seen_while_it_runs() {
        let root = tempfile::tempdir().unwrap();
        assert!(!is_running(root.path()).unwrap());
        let (one, other) = (Running::tell(root.path()).unwrap(), Running::tell(root.path()).unwrap());
        drop(one);
        assert!(is_running(root.path()).unwrap());
        drop(other);
        let stopped = Stopped::ensure(root.path()).unwrap();
        assert!(stopped.is_some() && Running::tell(root.path()).is_err());
        assert!(!is_running(&root.path().join("nothing")).unwrap());
    }
}

//! Cgroups for the processes of one node: socket programs attach there, and only there.

use crate::{
    cleanup::{self, Guard},
    mounts,
};
use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Names a cgroup of the unified hierarchy below which ours are made, instead of its root: one that
/// limits the memory of all of them, for example.
const PARENT: &str = "SHUNT_CGROUPS";

/// A cgroup of ours, removed on drop.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    _guard: Guard,
}

impl Cgroup {
    /// Makes one. Processes join it by [`Spawn::cgroup`](crate::process::Spawn::cgroup).
    pub fn create(label: &str) -> Result<Self> {
        let parent = std::env::var_os(PARENT).map_or_else(root, |parent| Ok(parent.into()))?;
        Self::create_at(parent.join(cleanup::unique(label)))
    }

    /// Makes one below this one, as a pod has it below its node.
    pub fn child(&self, name: &str) -> Result<Self> {
        Self::create_at(self.path.join(name))
    }

    fn create_at(path: PathBuf) -> Result<Self> {
        let (path, guard) = cleanup::create(|| {
            fs::create_dir(&path).with_context(|| format!("create cgroup {}", path.display()))?;
            let doomed = path.clone();
            Ok((path, move || cleanup::report(remove(&doomed), &doomed)))
        })?;
        Ok(Self { path, _guard: guard })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Where the unified hierarchy is mounted; hybrid systems have it in a subdirectory.
pub fn root() -> Result<PathBuf> {
    match mounts::of_type("cgroup2")?.into_iter().next() {
        Some(root) => Ok(root),
        None => bail!("no cgroup2 file system is mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup"),
    }
}

/// A cgroup can go only after those below it, and after the last of its processes was reaped.
/// Children of a process that was killed may still run in it, and nobody else would end them.
pub(crate) fn remove(path: &Path) -> Result<()> {
    fs::write(path.join("cgroup.kill"), "1")?;
    for entry in fs::read_dir(path)?.flatten().filter(|entry| entry.path().is_dir()) {
        remove(&entry.path())?;
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            result => return Ok(result?),
        }
    }
}

//! Cgroups that limit what a command may use together with everything that it starts.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::proc::say;

/// Tells the test harness where it may make cgroups, so that nothing leaves this one.
const CGROUPS_VARIABLE: &str = "SHUNT_CGROUPS";
/// How long the last of the processes may take to end.
const EMPTIES: Duration = Duration::from_secs(30);
/// Names of ours: this, a label, and the process that made them.
const PREFIX: &str = "shunt-";

/// A cgroup in the hierarchy of one controller; goes with this value.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    version: Version,
}

/// The files of a cgroup differ between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    /// Of the unified hierarchy, in which sockets are translated.
    V2,
}

impl Cgroup {
    /// Makes one.
    ///
    /// # Errors
    /// When this machine has no cgroups with this controller.
    pub(crate) fn create(controller: &str, label: &str) -> anyhow::Result<Self> {
        let (root, version) = hierarchy(controller)?;
        sweep(&root);
        let path = root.join(format!("{PREFIX}{label}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make the cgroup {}", path.display()))?;
        Ok(Self { path, version })
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn write(&self, file: &str, value: impl std::fmt::Display) -> anyhow::Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value.to_string()).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The text of one of its files; empty if it cannot be read.
    pub(crate) fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path.join(file)).unwrap_or_default()
    }

    /// Has the command run in it.
    pub(crate) fn hold(&self, command: &mut Command) -> anyhow::Result<()> {
        let processes = self.path.join("cgroup.procs");
        let file = fs::OpenOptions::new().write(true).open(&processes);
        let file = file.with_context(|| format!("cannot open {}", processes.display()))?;
        if self.version == Version::V2 {
            command.env(CGROUPS_VARIABLE, &self.path);
        }
        // SAFETY: write(2) is async-signal-safe; 0 stands for the writing process.
        unsafe { command.pre_exec(move || io::Write::write_all(&mut &file, b"0")) };
        Ok(())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + EMPTIES;
        while let Err(error) = remove(&self.path) {
            if Instant::now() > deadline {
                say(format_args!("cannot remove the cgroup {}: {error}", self.path.display()));
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Removes a cgroup of ours with those below it, in which nothing runs any more.
fn remove(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)?.flatten().filter(|entry| entry.path().is_dir()) {
        remove(&entry.path())?;
    }
    fs::remove_dir(path)
}

/// Removes what others have left that were killed.
fn sweep(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let is_dead = |owner: u32| !Path::new("/proc").join(owner.to_string()).exists();
        if owner(&entry.file_name().to_string_lossy()).is_some_and(is_dead)
            && let Err(error) = remove(&entry.path())
        {
            say(format_args!("cannot remove the cgroup {}: {error}", entry.path().display()));
        }
    }
}

/// The process that made a cgroup of this name.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.rsplit_once('-')?.1.parse().ok()
}

/// Where cgroups with this controller can be made.
fn hierarchy(controller: &str) -> anyhow::Result<(PathBuf, Version)> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (Some(path), Some(kind), Some(options)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let path = PathBuf::from(path);
        match kind {
            "cgroup" if options.split(',').any(|option| option == controller) => {
                return Ok((path, Version::V1));
            }
            "cgroup2" if is_enabled(controller, &path) => return Ok((path, Version::V2)),
            _ => {}
        }
    }
    anyhow::bail!("this machine has no cgroups with the controller {controller}")
}

/// Whether cgroups below the root of this unified hierarchy have the controller.
fn is_enabled(controller: &str, root: &Path) -> bool {
    let enabled = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
    enabled.split_whitespace().any(|name| name == controller)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_who_made_it() {
        assert_eq!(owner("shunt-memory-12"), Some(12));
        assert_eq!(owner("shunt-test-load-12"), Some(12));
        for other in ["shunt-memory-", "shunt-12", "sh12-1-node", "system.slice"] {
            assert_eq!(owner(other), None, "{other}");
        }
    }
}

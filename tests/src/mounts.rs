//! The mount table, and bpf file systems of our own.
//!
//! Each node gets a bpf file system to itself: unmounting it releases every pin and
//! link in it, also those of an agent that did not clean up.

use crate::cleanup::{self, Guard};
use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A mounted bpf file system, unmounted on drop.
#[derive(Debug)]
pub struct BpfFs {
    path: PathBuf,
    _mount: Guard,
    _directory: Guard,
}

impl BpfFs {
    /// Mounts a new one.
    pub fn mount(label: &str) -> Result<Self> {
        let (path, directory) = cleanup::directory(&format!("{label}-bpf"))?;
        let (path, mounted) = cleanup::create(|| {
            mount(Some("bpf"), &path, Some("bpf"), MsFlags::empty(), None::<&str>)
                .with_context(|| format!("mount a bpf file system on {}", path.display()))?;
            let doomed = path.clone();
            Ok((path, move || unmount(&doomed)))
        })?;
        // Fields drop in order: first the mount goes, then the directory below it.
        Ok(Self { path, _mount: mounted, _directory: directory })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Mount points whose file system is of this type, from the mount table of this process.
pub fn of_type(kind: &str) -> Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mounts").context("read the mount table")?;
    let mounts = table.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let point = fields.nth(1)?;
        (fields.next() == Some(kind)).then(|| PathBuf::from(point))
    });
    Ok(mounts.collect())
}

/// Unmounts `path` and whatever is mounted below it, if anything is.
pub(crate) fn unmount_below(path: &Path) {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
    let mut points: Vec<_> = points.filter(|point| point.starts_with(path)).collect();
    points.reverse();
    points.into_iter().for_each(unmount);
}

pub(crate) fn unmount(path: &Path) {
    cleanup::report(umount2(path, MntFlags::MNT_DETACH).map_err(Into::into), path);
}

//! Socket hooks at a cgroup: attached by pinned links, replaced in place.

use std::{
    fs::{self, File},
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    programs::{CgroupAttachMode, CgroupSockAddr, links::FdLink},
};

use super::{bpf, error::KernelError, object, pins::Pins};

/// The root of the cgroup v2 hierarchy, by the mount table.
///
/// # Errors
/// When the table cannot be read or has none.
pub(super) fn cgroup_root() -> Result<PathBuf, KernelError> {
    let table = Path::new("/proc/self/mounts");
    let mounts = fs::read_to_string(table).map_err(|source| KernelError::File {
        what: "cannot read",
        path: table.to_owned(),
        source,
    })?;
    let mut fields = mounts.lines().map(|line| line.split(' '));
    let found = fields.find_map(|mut f| {
        let (_, dir, kind) = (f.next()?, f.next()?, f.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(dir))
    });
    found.ok_or_else(|| KernelError::Cgroup {
        path: PathBuf::from("/sys/fs/cgroup"),
        source: std::io::Error::from(std::io::ErrorKind::NotFound),
    })
}

/// Levels of the hierarchy in which [`attached_cgroup`] looks.
const DEPTH: usize = 10;

/// The cgroup that the pinned hooks are attached to; none if there are no pins, or it is nowhere in the mounted hierarchy.
pub fn attached_cgroup(pins: &Pins) -> Option<PathBuf> {
    let link = bpf::link_open(&pins.link(object::BIND_HOOKS[0])).ok()?;
    let id = bpf::link_cgroup(link.as_fd()).ok()?;
    find(cgroup_root().ok()?, id, DEPTH)
}

/// A cgroup's id is the number of its directory's inode.
fn find(directory: PathBuf, id: u64, depth: usize) -> Option<PathBuf> {
    if fs::metadata(&directory).ok()?.ino() == id {
        return Some(directory);
    }
    let entries = fs::read_dir(directory).ok().filter(|_| depth > 0)?.flatten();
    let mut below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    below.find_map(|entry| find(entry.path(), id, depth - 1))
}

/// Attaches `hooks` to `cgroup`.
///
/// # Errors
/// When the cgroup cannot be opened or the kernel refuses.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    pins: &Pins,
    cgroup: &Path,
    hooks: &[&'static str],
) -> Result<(), KernelError> {
    let dir = File::open(cgroup).map_err(|source| KernelError::Cgroup { path: cgroup.to_owned(), source })?;
    for name in hooks.iter().copied() {
        let program = object::program::<CgroupSockAddr>(ebpf, name)?;
        attach_one(program, pins, name, &dir).map_err(|source| KernelError::Attach {
            program: name,
            target: format!("the cgroup {}", cgroup.display()),
            source,
        })?;
    }
    Ok(())
}

/// Whether `hook` is attached to the cgroup with this id.
pub(super) fn is_attached(pins: &Pins, hook: &str, cgroup: u64) -> bool {
    let attached = bpf::link_open(&pins.link(hook)).and_then(|link| bpf::link_cgroup(link.as_fd()));
    attached.is_ok_and(|attached| attached == cgroup)
}

/// The id of a cgroup.
///
/// # Errors
/// When there is no such cgroup.
pub(super) fn cgroup_id(cgroup: &Path) -> Result<u64, KernelError> {
    let id = File::open(cgroup).and_then(|dir| bpf::cgroup_id(dir.as_fd()));
    id.map_err(|source| KernelError::Cgroup { path: cgroup.to_owned(), source })
}

fn attach_one(
    program: &mut CgroupSockAddr,
    pins: &Pins,
    name: &str,
    cgroup: &File,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let pin = pins.link(name);
    if let Ok(link) = bpf::link_open(&pin) {
        let replaced = bpf::link_update(link.as_fd(), program.fd()?.as_fd());
        if replaced.is_ok() && bpf::link_cgroup(link.as_fd())? == bpf::cgroup_id(cgroup.as_fd())? {
            return Ok(());
        }
        // Its cgroup is gone, or the operator names another one.
        fs::remove_file(&pin)?;
    }
    let id = program.attach(cgroup, CgroupAttachMode::Single)?;
    let link: FdLink = program.take_link(id)?.try_into()?;
    link.pin(&pin)?;
    Ok(())
}

/// Removes `hooks`; returns those that were there.
pub(super) fn detach(pins: &Pins, hooks: &[&str]) -> Vec<String> {
    hooks
        .iter()
        .filter(|name| fs::remove_file(pins.link(name)).is_ok())
        .map(|n| format!("socket hook {n}"))
        .collect()
}

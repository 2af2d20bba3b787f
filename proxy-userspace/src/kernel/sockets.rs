//! Socket hooks at a cgroup: attached by pinned links, replaced in place.

use std::{
    fs::{self, File},
    os::fd::AsFd,
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

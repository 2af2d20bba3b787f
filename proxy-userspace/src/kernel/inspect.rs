//! What `shunt check` looks at: the kernel and its file systems, the programs at devices and
//! at the cgroup, and what else may translate service traffic here. Changes nothing and
//! judges nothing.

mod kube_proxy;
mod ports;
mod programs;
mod stack;

use std::path::{Path, PathBuf};

use nix::sys::statfs::{BPF_FS_MAGIC, CGROUP2_SUPER_MAGIC, statfs};

use super::{attach, sockets};

pub use self::{
    kube_proxy::KubeProxy,
    ports::{Listener, listeners},
    programs::{DevicePrograms, SocketHook, device_programs, socket_hooks},
    stack::{Stack, stack},
};

/// What the kernel offers.
#[derive(Clone, Debug)]
pub struct System {
    /// As `uname -r` says.
    pub release: String,
    /// Its version as numbers, if they can be told.
    pub version: Option<(u32, u32)>,
    /// It describes its own types.
    pub btf: bool,
    /// It has TCX links.
    pub tcx: bool,
    /// The directory of pins is on a BPF file system.
    pub bpffs: bool,
    /// The root of cgroup v2.
    pub cgroup: Option<PathBuf>,
}

/// Looks at the kernel; `cgroup` is what the operator names in place of the root.
pub fn system(bpffs: &Path, cgroup: Option<&Path>) -> System {
    let release = nix::sys::utsname::uname()
        .map(|names| names.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    let version = numbers.next().zip(numbers.next());
    let existing = bpffs.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    let is_cgroup = |path: &PathBuf| statfs(path).is_ok_and(|fs| fs.filesystem_type() == CGROUP2_SUPER_MAGIC);
    System {
        version,
        release,
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        tcx: attach::TcMode::Auto.is_tcx(),
        bpffs: statfs(existing).is_ok_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC),
        cgroup: cgroup.map(Path::to_owned).or_else(|| sockets::cgroup_root().ok()).filter(is_cgroup),
    }
}

//! What can go wrong between the agent and the kernel.

use std::{io, path::PathBuf};

/// A request the kernel did not grant.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The directory for pins is not on a BPF file system.
    #[error("{path} is not on a BPF file system; mount one: mount -t bpf bpf {path}")]
    NotBpffs {
        /// The directory, or its nearest parent that exists.
        path: PathBuf,
    },
    /// No cgroup v2 hierarchy is mounted where socket LB can attach.
    #[error(
        "socket LB needs a cgroup v2 directory: {path}: {source}; give one with --cgroup, or set socketLB: off"
    )]
    Cgroup {
        /// The directory that was tried.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The object could not be loaded.
    #[error("cannot load the eBPF object: {0}")]
    Load(#[from] aya::EbpfError),
    /// Rows of an earlier agent could not be read or used.
    #[error(
        "cannot use the rows that an earlier agent left: {0}; if it goes on, run `shunt cleanup` and start anew"
    )]
    Rows(#[from] crate::dataplane::MapError),
    /// The verifier refused a program, or the kernel lacks its type.
    #[error("cannot load the eBPF program {name}: {source}")]
    Program {
        /// Its name in the object.
        name: &'static str,
        /// What the kernel said, the verifier's log included.
        source: aya::programs::ProgramError,
    },
    /// A program could not be attached.
    #[error("cannot attach {program} to {target}: {source}")]
    Attach {
        /// The program.
        program: &'static str,
        /// A device with its direction, or a cgroup.
        target: String,
        /// What the kernel said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What programs and rows of an earlier generation need to go on in this one.
    #[error("cannot hand over {what}: {source}")]
    Handover {
        /// Which part.
        what: String,
        /// What the kernel said, or what is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The pinned maps are those of another version.
    #[error(
        "the maps at {path} have layout {found}, this program reads layout {wanted}; \
         use the version of the agent that runs here"
    )]
    OtherLayout {
        /// Their directory.
        path: PathBuf,
        /// The version there.
        found: u32,
        /// The version here.
        wanted: u32,
    },
    /// A map cannot be used.
    #[error("cannot use the map {name}: {source}")]
    Map {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        source: aya::maps::MapError,
    },
    /// A file or directory of ours cannot be used.
    #[error("{what} {path}: {source}")]
    File {
        /// What was attempted.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel's view of devices, addresses and routes cannot be read.
    #[error("cannot read devices, addresses and routes by netlink: {0}")]
    Netlink(#[from] rtnetlink::Error),
}

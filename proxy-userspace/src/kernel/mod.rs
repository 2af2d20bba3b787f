//! The only user of aya: loads, pins and attaches the eBPF programs, writes their maps,
//! and follows the host's devices by netlink.

mod attach;
mod bpf;
mod datapath;
mod error;
mod host;
mod maps;
mod mmap;
mod netlink;
mod object;
mod pinned;
mod pins;
mod sockets;

pub use attach::{Target, TcMode};
pub use bpf::Run;
pub use datapath::{Datapath, EdgeChange, Options, cleanup};
pub use error::KernelError;
pub use host::{DevicePolicy, Edge, EdgeKind, Host, Link, LinkKind, Override};
pub use maps::{KernelAddr, KernelFamily, KernelMaps};
pub use netlink::Netlink;
pub use object::Capacities;
pub use pinned::{ConntrackRows, PinnedMaps, SocketFlowRows};
pub use pins::{DEFAULT_BPFFS, Pins};

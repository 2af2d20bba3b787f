//! The only user of aya: loads, pins and attaches the eBPF programs, writes their maps,
//! follows the host's devices and
//! destroys sockets by netlink.

mod attach;
mod bpf;
mod capacity;
mod carry;
mod cleanup;
mod conntrack_memory;
mod counts;
mod datapath;
mod drops;
mod dry_run;
mod error;
mod ethtool;
mod events;
mod family;
mod fields;
mod filter;
mod generations;
mod handover;
mod hash;
mod heap;
mod holdings;
mod host;
mod host_ports;
mod inspect;
mod iterators;
mod layout;
mod loopback;
mod maps;
mod mmap;
mod namespaces;
mod netfilter;
mod netlink;
mod netlink_socket;
mod next_hops;
mod nf_conntrack;
mod object;
mod pinned;
mod pins;
mod pod_cgroups;
mod route_watch;
mod routes;
mod running;
mod sock_diag;
mod sockets;
mod sweep;
mod tails;
mod trie;
mod xdp;

pub use attach::{Target, TcMode};
pub use bpf::Run;
pub use cleanup::cleanup;
pub use conntrack_memory::{conntrack_bytes, conntrack_rows_within, full_conntrack_bytes};
pub use datapath::{Datapath, EdgeChange, Lost, Options, Part, Standing};
pub use drops::{DROPS, DropMetrics};
pub use dry_run::DryRun;
pub use error::KernelError;
pub use events::{Listener as EventListener, interface_name};
pub use family::{KernelAddr, KernelFamily};
pub use handover::HandedOver;
pub use heap::{keep_small as keep_heap_small, release as release_heap};
pub use holdings::Holdings;
pub use host::{
    DevicePolicy, Edge, EdgeKind, Elsewhere, Host, Link, LinkKind, MasqueradeFault, Override, Served, Vlan,
    XdpPlan, XdpTarget,
};
pub use host_ports::HostPorts;
pub use inspect::{
    DevicePrograms, KubeProxy, Listener, SocketHook, Stack, System, device_programs, listeners, socket_hooks,
    stack, system,
};
pub use maps::KernelMaps;
pub use namespaces::netns_cookie;
pub use netfilter::{
    IpFamily, KEEPER, LegacyRules, RuleSet, Ruler, keep_translating, kube_proxy_rules, legacy_rules,
    nat_flows, remove_rules, stop_translating,
};
pub use netlink::Netlink;
pub use nf_conntrack::{NfConntrack, Unset};
pub use object::Capacities;
pub use pinned::{ConntrackRows, MapSize, PinnedMaps};
pub use pins::{DEFAULT_BPFFS, Pins};
pub use route_watch::RouteWatch;
pub use routes::{Question, Way};
pub use running::{Running, Stopped, is_running};
pub use sock_diag::KernelSockets;
pub use sockets::attached_cgroup;
pub use xdp::{XdpInForce, XdpMode, XdpPolicy, XdpStatus};

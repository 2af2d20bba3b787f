//! `settings`: array with one row, what the agent's configuration means to the datapath.
//! A row and not load-time constants, so that a reload takes effect without loading
//! programs anew.

use super::{assert_size, pod};
use crate::addr::{Addr, Ip4, Ip6};

/// How the datapath is configured.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    /// `bpf_get_netns_cookie` of the host's network namespace.
    pub host_netns_cookie: u64,
    /// A random number of this node, by which connections find their backend and source port: nobody
    /// else can tell which, and the same connection comes to the same ones.
    pub secret: [u64; 2],
    /// Bits of [`flags`].
    pub flags: u32,
    /// First source port for masquerading.
    pub snat_port_first: u16,
    /// Number of source ports for masquerading, at least 1.
    pub snat_port_count: u16,
    /// Sources in here are pods, with [`flags::PODS_BY_CIDR_V4`].
    pub pod_cidr_v4: Ip4,
    /// Length of the prefix in bits.
    pub pod_cidr_bits_v4: u32,
    /// Sources in here are pods, with [`flags::PODS_BY_CIDR_V6`].
    pub pod_cidr_v6: Ip6,
    /// Length of the prefix in bits.
    pub pod_cidr_bits_v6: u32,
    /// With [`flags::SERVICE_CIDRS`], all of them are in here.
    pub service_range_v4: Ip4,
    /// Length of the prefix in bits; 0 is any address.
    pub service_range_bits_v4: u32,
    /// Likewise for IPv6.
    pub service_range_v6: Ip6,
    /// Length of the prefix in bits; 0 is any address.
    pub service_range_bits_v6: u32,
    /// When the agent forgets connections. Programs never read them; they let `shunt conn list` tell
    /// how long a connection has left while no agent runs.
    pub timeouts: TimeoutSecs,
}

/// Seconds of silence after which a connection is forgotten, by its state.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TimeoutSecs {
    /// TCP, both sides have acknowledged.
    pub tcp_established: u32,
    /// TCP, not yet.
    pub tcp_opening: u32,
    /// TCP, one side has closed.
    pub tcp_half_closed: u32,
    /// TCP, both sides have closed.
    pub tcp_closed: u32,
    /// TCP, one side has reset.
    pub tcp_reset: u32,
    /// UDP, a question and perhaps its answer.
    pub udp: u32,
    /// UDP, more than that.
    pub udp_stream: u32,
    /// SCTP.
    pub sctp: u32,
}

/// Addresses that ServiceCIDRs may be made of.
pub trait ServiceRange: Addr {
    /// False for an address that is in no ServiceCIDR.
    fn in_service_range(&self, settings: &Settings) -> bool;
}

impl ServiceRange for Ip4 {
    #[inline(always)]
    fn in_service_range(&self, settings: &Settings) -> bool {
        settings.flags & flags::SERVICE_CIDRS != 0
            && self.in_prefix(&settings.service_range_v4, settings.service_range_bits_v4)
    }
}

impl ServiceRange for Ip6 {
    #[inline(always)]
    fn in_service_range(&self, settings: &Settings) -> bool {
        settings.flags & flags::SERVICE_CIDRS != 0
            && self.in_prefix(&settings.service_range_v6, settings.service_range_bits_v6)
    }
}

/// Bits of [`Settings::flags`].
pub mod flags {
    /// IPv4 sources in `pod_cidr_v4` are pods.
    pub const PODS_BY_CIDR_V4: u32 = 1;
    /// IPv6 sources in `pod_cidr_v6` are pods.
    pub const PODS_BY_CIDR_V6: u32 = 2;
    /// Interfaces marked [`POD`](super::super::devices::flags::POD) lead to pods.
    pub const PODS_BY_DEVICE: u32 = 4;
    /// Socket LB serves processes of the host network.
    pub const SOCKET_LB_HOST: u32 = 8;
    /// Socket LB serves processes in other network namespaces.
    pub const SOCKET_LB_PODS: u32 = 16;
    /// ClusterIPs answer ICMP echo.
    pub const ANSWER_ECHO: u32 = 32;
    /// There are rows in `service_cidrs`.
    pub const SERVICE_CIDRS: u32 = 64;
    /// kube-proxy's rules are in force, and not all devices carry the programs: what no row is for
    /// is netfilter's.
    pub const ATTACHING: u32 = 128;
    /// kube-proxy's rules were in force until now: what is met in the middle, or may be, is
    /// netfilter's.
    pub const TAKEOVER: u32 = 256;
    /// There is no row in `socket_lb_exempt`.
    pub const NONE_EXEMPT: u32 = 512;
    /// One generation of maps hands over to another: a row that is missing here may be there. Each
    /// layout has this bit.
    pub const HANDOVER: u32 = 1024;
    /// Any TCP or SCTP packet to a frontend opens a connection.
    pub const LOOSE: u32 = 2048;
    /// Processes of the host may bind NodePorts.
    pub const NODE_PORTS_FREE: u32 = 4096;
}

assert_size!(Settings = 120, TimeoutSecs = 32);
pod!(Settings);

//! `frontends_v4`, `frontends_v6`: hash, address a service answers on → where to send it.

use super::{assert_size, pod, slots::SlotRange};
use crate::addr::{Ip4, Ip6};

/// Number of rows per family that the map begins with, unless configured.
pub const CAPACITY: u32 = 16_384;

/// Number of rows per family to which it grows, unless much is configured.
pub const MOST: u32 = 2_097_152;

/// One address a service answers on.
///
/// NodePorts are stored under the unspecified address and match when the destination
/// is in `node_addresses`. A row with port 0 and protocol 0 stands for the address as a
/// whole (see [`Kind::ADDRESS`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrontendKey<A> {
    /// Destination address.
    pub addr: A,
    /// Destination port.
    pub port: u16,
    /// IANA protocol number.
    pub proto: u8,
    /// Zero.
    pub pad: u8,
}

/// What a frontend leads to. Every rule of Kubernetes has been boiled down to these
/// fields by user space; the datapath only classifies the client.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frontend {
    /// Key of the row in `services`.
    pub service: u32,
    /// Three [`ClientRule`]s of eight bits, one per [`ClientClass`], lowest class lowest.
    pub rules: u32,
    /// Slots of all usable backends. One slot per backend, or the service's lookup table when
    /// backends have weights or [`flags::MAGLEV`] is set.
    pub cluster: SlotRange,
    /// Slots of the usable backends on this node. With a rule that has [`ClientRule::DSR`], one
    /// slot for each backend on this node that answers: those that other nodes may send to.
    pub local: SlotRange,
    /// Seconds a client sticks to its backend (ClientIP affinity); 0 is off.
    pub affinity_secs: u32,
    /// A [`Kind`].
    pub kind: u8,
    /// Bits of [`flags`].
    pub flags: u8,
    /// Zero.
    pub pad: u16,
}

assert_size!(FrontendKey<Ip4> = 8, FrontendKey<Ip6> = 20, Frontend = 32);
pod!(FrontendKey<A>, Frontend);

/// Bits of [`Frontend::flags`].
pub mod flags {
    /// Only sources in `source_ranges` may use it.
    pub const SOURCE_RANGES: u8 = 1;
    /// The slot is found by hashing the client instead of by chance: every node that has the same
    /// table sends one connection to the same backend (Maglev, NSDI 2016).
    pub const MAGLEV: u8 = 2;
}

/// Which face of a service a frontend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind(pub u8);

impl Kind {
    /// No port at all: this is a ClusterIP, and ports it does not declare are refused.
    pub const ADDRESS: Kind = Kind(0);
    /// `spec.clusterIPs`.
    pub const CLUSTER_IP: Kind = Kind(1);
    /// `spec.ports[].nodePort`.
    pub const NODE_PORT: Kind = Kind(2);
    /// `spec.externalIPs`.
    pub const EXTERNAL_IP: Kind = Kind(3);
    /// `status.loadBalancer.ingress[].ip` with `ipMode: VIP`.
    pub const LOAD_BALANCER: Kind = Kind(4);

    /// The name as Kubernetes writes it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::ADDRESS => "Address",
            Kind::CLUSTER_IP => "ClusterIP",
            Kind::NODE_PORT => "NodePort",
            Kind::EXTERNAL_IP => "ExternalIP",
            Kind::LOAD_BALANCER => "LoadBalancer",
            _ => "Unknown",
        }
    }
}

/// Where a client sits, as far as traffic policies care.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientClass {
    /// A pod, by the configured way of detecting local traffic.
    Pod = 0,
    /// A process in the host network of this node.
    Node = 1,
    /// Anybody else.
    External = 2,
}

/// How one class of clients is served by one frontend: a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientRule(pub u32);

impl ClientRule {
    /// Choose among the backends of this node only; else among all.
    pub const LOCAL: u32 = 1;
    /// Masquerade behind an address of this node.
    pub const SNAT: u32 = 2;
    /// With no backend to choose from, drop silently; else refuse.
    pub const DROP: u32 = 4;

    /// May not use the frontend at all: outside the service's source ranges.
    pub const DENY: u32 = 8;
    /// Direct server return: a backend on another node gets the packet with the client's
    /// address, encapsulated, and its node answers with the frontend's. Excludes `SNAT`.
    pub const DSR: u32 = 16;

    const BITS: u32 = 8;

    /// The rule for `class` in [`Frontend::rules`].
    #[inline(always)]
    pub fn of(rules: u32, class: ClientClass) -> Self {
        Self((rules >> (class as u32 * Self::BITS)) & ((1 << Self::BITS) - 1))
    }

    /// [`Frontend::rules`] with one rule for each class.
    pub fn pack(pod: Self, node: Self, external: Self) -> u32 {
        pod.0 | node.0 << Self::BITS | external.0 << (2 * Self::BITS)
    }

    /// True when all of `bits` are set.
    #[inline(always)]
    pub fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_kept_apart() {
        let rules = ClientRule::pack(
            ClientRule(ClientRule::LOCAL),
            ClientRule(ClientRule::SNAT),
            ClientRule(ClientRule::DROP | ClientRule::DSR),
        );
        assert_eq!(ClientRule::of(rules, ClientClass::Pod).0, ClientRule::LOCAL);
        assert_eq!(ClientRule::of(rules, ClientClass::Node).0, ClientRule::SNAT);
        assert_eq!(ClientRule::of(rules, ClientClass::External).0, ClientRule::DROP | ClientRule::DSR);
    }
}

//! The host's devices, addresses and default routes, and what follows from them: which
//! devices are edges, and behind which addresses each masquerades. Pure: `netlink.rs` reads,
//! `datapath.rs` acts.

mod masquerade;
mod xdp;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use proxy_common::{
    addr::{Ip4, Ip6},
    maps::devices::{Device, edge, flags},
};

pub use self::masquerade::MasqueradeFault;
pub use self::xdp::{Elsewhere, Served, XdpPlan, XdpTarget};

use super::{attach::Target, xdp::XdpInForce};

/// The loopback device has this index in every network namespace.
pub(super) const LOOPBACK: u32 = 1;

/// What kind of link a device is, as far as edges care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// No kind: a NIC, physical or virtio.
    Physical,
    /// One end of a virtual cable; the other may be in another network namespace.
    Cable {
        /// The other end is elsewhere.
        peer_elsewhere: bool,
    },
    /// Bond or team, the master.
    Bond,
    /// VLAN device.
    Vlan,
    /// Encapsulating device.
    Tunnel,
    /// Bridge, the master.
    Bridge,
    /// The loopback device.
    Loopback,
    /// Anything else.
    Other,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub ifindex: u32,
    /// Interface name.
    pub name: String,
    /// Kind of link.
    pub kind: LinkKind,
    /// Its packets begin with an Ethernet header.
    pub ethernet: bool,
    /// Link-layer address, zero if it has none of six bytes.
    pub mac: [u8; 6],
    /// The device it is enslaved to.
    pub master: Option<u32>,
    /// Largest packet it takes.
    pub mtu: u32,
    /// What it is of another device, if it is a VLAN device.
    pub vlan: Option<Vlan>,
    /// The XDP program it carries, ours or another's.
    pub xdp: Option<XdpInForce>,
}

/// A VLAN device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// VLAN id.
    pub id: u16,
    /// The device under it; none if that is in another network namespace.
    pub parent: Option<u32>,
    /// Its tags are those of 802.1Q.
    pub dot1q: bool,
}

/// What the kernel said at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// All devices by index.
    pub links: BTreeMap<u32, Link>,
    /// All usable addresses with their device, in the kernel's order: primary ones first.
    pub addresses: Vec<(u32, IpAddr)>,
    /// Devices of default routes, the most preferred first.
    pub default_routes: Vec<u32>,
}

/// What a device is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeKind {
    /// Host side of a pod's link.
    Pod,
    /// Uplink.
    Node,
    /// Overlay.
    Tunnel,
    /// Loopback, for host processes that socket LB does not serve.
    Loopback,
}

impl EdgeKind {
    /// The word in tables and logs.
    pub fn name(self) -> &'static str {
        match self {
            EdgeKind::Pod => "pod",
            EdgeKind::Node => "node",
            EdgeKind::Tunnel => "tunnel",
            EdgeKind::Loopback => "loopback",
        }
    }

    /// The kind that the agent noted for a device; none if it is not an edge.
    pub fn noted(device: &Device) -> Option<Self> {
        let noted = (device.flags & flags::EDGE) >> flags::EDGE_SHIFT;
        [EdgeKind::Pod, EdgeKind::Node, EdgeKind::Tunnel, EdgeKind::Loopback]
            .into_iter()
            .find(|kind| kind.number() == noted)
    }

    fn number(self) -> u32 {
        match self {
            EdgeKind::Pod => edge::POD,
            EdgeKind::Node => edge::NODE,
            EdgeKind::Tunnel => edge::TUNNEL,
            EdgeKind::Loopback => edge::LOOPBACK,
        }
    }
}

/// What the operator says about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Override {
    /// Not an edge.
    Ignore,
    /// This kind of edge.
    Edge(EdgeKind),
}

/// What the operator and the configuration say about devices.
pub trait DevicePolicy {
    /// The operator's word on the device called `name`, if any.
    fn override_for(&self, name: &str) -> Option<Override>;
    /// True if what comes in by this device counts as coming from a pod (the interface
    /// modes of `detectLocalMode`).
    fn leads_to_pods(&self, name: &str, master: Option<&str>) -> bool;
    /// Loopback is an edge too: no socket hook serves host processes.
    fn loopback_edge(&self) -> bool;
    /// Addresses of the host in these ranges take the place of those that MASQUERADE would choose.
    fn masquerade_ranges(&self) -> &[IpNet];
}

/// An edge and its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Where the programs go.
    pub target: Target,
    /// Why.
    pub kind: EdgeKind,
}

impl Host {
    /// All addresses the host owns.
    pub fn owned(&self) -> BTreeSet<IpAddr> {
        self.addresses.iter().map(|(_, addr)| *addr).collect()
    }

    /// The edges, by interface index. `node_addresses` are those of the Node object.
    pub fn edges(&self, node_addresses: &[IpAddr], policy: &impl DevicePolicy) -> Vec<Edge> {
        let edge = |link: &Link| {
            let kind = self.edge_kind(link, node_addresses, policy)?;
            let target = Target { ifindex: link.ifindex, name: link.name.clone(), ethernet: link.ethernet };
            Some(Edge { target, kind })
        };
        self.links.values().filter_map(edge).collect()
    }

    fn edge_kind(
        &self,
        link: &Link,
        node_addresses: &[IpAddr],
        policy: &impl DevicePolicy,
    ) -> Option<EdgeKind> {
        if link.kind == LinkKind::Loopback {
            return policy.loopback_edge().then_some(EdgeKind::Loopback);
        }
        match policy.override_for(&link.name) {
            Some(Override::Ignore) => return None,
            Some(Override::Edge(kind)) => return Some(kind),
            None => {}
        }
        if self.is_uplink(link.ifindex, node_addresses) {
            return Some(EdgeKind::Node);
        }
        // The programs run once per packet: at the bond or the bridge, not at its port too.
        if let Some(master) = link.master.and_then(|m| self.links.get(&m))
            && (master.kind == LinkKind::Bond || self.is_uplink(master.ifindex, node_addresses))
        {
            return None;
        }
        match link.kind {
            LinkKind::Cable { peer_elsewhere: true } => Some(EdgeKind::Pod),
            LinkKind::Physical | LinkKind::Bond | LinkKind::Vlan => Some(EdgeKind::Node),
            LinkKind::Tunnel => Some(EdgeKind::Tunnel),
            LinkKind::Cable { peer_elsewhere: false }
            | LinkKind::Bridge
            | LinkKind::Loopback
            | LinkKind::Other => None,
        }
    }

    /// Carries the node's address or a default route: a node edge whatever its kind, since the
    /// uplink of a node in a container is itself a cable to another namespace.
    fn is_uplink(&self, ifindex: u32, node_addresses: &[IpAddr]) -> bool {
        self.default_routes.contains(&ifindex)
            || self.addresses.iter().any(|(i, addr)| *i == ifindex && node_addresses.contains(addr))
    }

    /// The rows of the `devices` map: all devices, since a packet may be routed out by any.
    /// `transmitters` send what XDP on another device redirects to them.
    pub fn devices(
        &self,
        node_addresses: &[IpAddr],
        policy: &impl DevicePolicy,
        transmitters: &BTreeSet<u32>,
    ) -> Vec<(u32, Device)> {
        let row = |link: &Link| {
            let master = link.master.and_then(|m| self.links.get(&m));
            let pods = policy.leads_to_pods(&link.name, master.map(|m| m.name.as_str()));
            let mut device = Device { mac: link.mac, ..Device::default() };
            device.flags |= if pods { flags::POD } else { 0 };
            device.flags |= if matches!(link.kind, LinkKind::Cable { .. }) { flags::CABLE } else { 0 };
            device.flags |= if transmitters.contains(&link.ifindex) { flags::XDP_XMIT } else { 0 };
            let kind = self.edge_kind(link, node_addresses, policy);
            device.flags |= kind.map_or(edge::NONE, EdgeKind::number) << flags::EDGE_SHIFT;
            if let Some(Vlan { id, parent: Some(parent), dot1q: true }) = link.vlan {
                (device.vlan, device.parent) = (id, parent);
            }
            let is_uplink = kind == Some(EdgeKind::Node);
            for addr in self.masquerade_addresses(link, is_uplink, node_addresses, policy) {
                match addr {
                    IpAddr::V4(addr) => device.add_snat(Ip4::from(addr)),
                    IpAddr::V6(addr) => device.add_snat(Ip6::from(addr)),
                }
            }
            (link.ifindex, device)
        };
        self.links.values().map(row).collect()
    }
}

#[cfg(test)]
mod tests;

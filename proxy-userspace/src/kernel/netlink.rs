//! Reads the host's devices, addresses and default routes, and tells when they change.
//!
//! Level-triggered: a notification only says that something changed; what is acted on is
//! a fresh dump, so a lost notification costs at most [`RESCAN`].

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use futures::{Stream, StreamExt, TryStreamExt, channel::mpsc::UnboundedReceiver};
use rtnetlink::{
    Handle, MulticastGroup, RouteMessageBuilder, new_multicast_connection,
    packet_core::NetlinkMessage,
    packet_route::{
        RouteNetlinkMessage,
        address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope},
        link::{
            InfoData, InfoKind, InfoVlan, LinkAttribute, LinkInfo, LinkLayerType, LinkMessage, VlanProtocol,
        },
        route::{RouteAttribute, RouteMessage, RouteType},
    },
    sys::SocketAddr,
};
use tokio::time::timeout;

use super::{
    KernelError,
    host::{Host, Link, LinkKind, Vlan},
    xdp,
};

/// A burst of changes, such as a pod's start, is read once it has been quiet for so long.
const SETTLE: Duration = Duration::from_millis(20);
/// A burst does not delay reading longer than this.
const SETTLE_AT_MOST: Duration = Duration::from_millis(200);
/// Read anew at least this often.
const RESCAN: Duration = Duration::from_secs(30);

/// A connection to the kernel's routing tables.
pub struct Netlink {
    handle: Handle,
    changes: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
}

impl Netlink {
    /// Connects in the network namespace of this thread. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn connect() -> Result<Self, KernelError> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ];
        let (connection, handle, changes) = new_multicast_connection(&groups)
            .map_err(|source| KernelError::System { what: "open a netlink socket".into(), source })?;
        tokio::spawn(connection);
        Ok(Self { handle, changes })
    }

    /// For questions that only some ask.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits for a change, or until it is time to look anyway. False when the connection has ended,
    /// as it does with the runtime: nothing will change or be answered any more.
    #[must_use]
    pub async fn changed(&mut self) -> bool {
        // Either a message, or the time is up: both are a reason to look.
        if let Ok(None) = timeout(RESCAN, self.changes.next()).await {
            return false;
        }
        let settle = async { while timeout(SETTLE, self.changes.next()).await.is_ok_and(|m| m.is_some()) {} };
        let _ = timeout(SETTLE_AT_MOST, settle).await;
        true
    }

    /// What the kernel says.
    ///
    /// # Errors
    /// When a dump fails.
    pub async fn host(&self) -> Result<Host, KernelError> {
        let links: Vec<LinkMessage> = collect(self.handle.link().get().execute()).await?;
        let addresses: Vec<AddressMessage> = collect(self.handle.address().get().execute()).await?;
        let v4 = RouteMessageBuilder::<std::net::Ipv4Addr>::new().build();
        let v6 = RouteMessageBuilder::<std::net::Ipv6Addr>::new().build();
        let mut routes: Vec<RouteMessage> = collect(self.handle.route().get(v4).execute()).await?;
        routes.extend(collect(self.handle.route().get(v6).execute()).await?);
        Ok(Host {
            links: links.iter().map(link).map(|link| (link.ifindex, link)).collect::<BTreeMap<_, _>>(),
            addresses: addresses.iter().filter_map(address).collect(),
            default_routes: default_routes(&routes),
        })
    }
}

/// All of a dump.
pub(super) async fn collect<T>(
    stream: impl Stream<Item = Result<T, rtnetlink::Error>>,
) -> Result<Vec<T>, KernelError> {
    Ok(stream.try_collect().await?)
}

fn link(message: &LinkMessage) -> Link {
    let layer = message.header.link_layer_type;
    let mut link = Link {
        ifindex: message.header.index,
        name: String::new(),
        kind: if layer == LinkLayerType::Loopback { LinkKind::Loopback } else { LinkKind::Physical },
        ethernet: matches!(layer, LinkLayerType::Ether | LinkLayerType::Loopback),
        mac: [0; 6],
        master: None,
        mtu: 0,
        vlan: None,
        xdp: xdp::in_force(&message.attributes),
    };
    let mut below = None;
    let mut peer_elsewhere = false;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(mac) => link.mac = mac.as_slice().try_into().unwrap_or_default(),
            LinkAttribute::Controller(ifindex) => link.master = Some(*ifindex),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Link(ifindex) => below = Some(*ifindex),
            LinkAttribute::LinkNetNsId(_) => peer_elsewhere = true,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => link.kind = link_kind(kind),
                        LinkInfo::Data(InfoData::Vlan(facts)) => link.vlan = vlan(facts),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if let LinkKind::Cable { peer_elsewhere: elsewhere } = &mut link.kind {
        *elsewhere = peer_elsewhere;
    }
    if let Some(vlan) = &mut link.vlan {
        vlan.parent = below.filter(|_| !peer_elsewhere);
    }
    link
}

fn vlan(facts: &[InfoVlan]) -> Option<Vlan> {
    let id = facts.iter().find_map(|fact| if let InfoVlan::Id(id) = fact { Some(*id) } else { None })?;
    let dot1q = !facts.contains(&InfoVlan::Protocol(VlanProtocol::Ieee8021Ad));
    Some(Vlan { id, parent: None, dot1q })
}

fn link_kind(kind: &InfoKind) -> LinkKind {
    match kind {
        InfoKind::Veth | InfoKind::Netkit => LinkKind::Cable { peer_elsewhere: false },
        InfoKind::Bond | InfoKind::Team => LinkKind::Bond,
        InfoKind::Vlan => LinkKind::Vlan,
        InfoKind::Bridge => LinkKind::Bridge,
        InfoKind::Vxlan
        | InfoKind::Geneve
        | InfoKind::IpIp
        | InfoKind::Ip6Tnl
        | InfoKind::SitTun
        | InfoKind::GreTun
        | InfoKind::GreTun6
        | InfoKind::GreTap
        | InfoKind::GreTap6
        | InfoKind::Wireguard => LinkKind::Tunnel,
        _ => LinkKind::Other,
    }
}

fn address(message: &AddressMessage) -> Option<(u32, IpAddr)> {
    let header = &message.header;
    // A link-local address serves no NodePort and masquerades nobody.
    if header.scope == AddressScope::Link || header.flags.contains(AddressHeaderFlags::Tentative) {
        return None;
    }
    // On a point-to-point device IFA_ADDRESS is the peer's, IFA_LOCAL ours.
    let mut found = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(addr) => return Some((header.index, *addr)),
            AddressAttribute::Address(addr) => found = Some((header.index, *addr)),
            _ => {}
        }
    }
    found
}

/// Devices of default routes, those of the lowest metric first.
fn default_routes(routes: &[RouteMessage]) -> Vec<u32> {
    let mut found = Vec::new();
    for route in routes {
        if route.header.destination_prefix_length != 0 || route.header.kind != RouteType::Unicast {
            continue;
        }
        let mut metric = 0;
        let mut devices = Vec::new();
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(ifindex) => devices.push(*ifindex),
                RouteAttribute::Priority(value) => metric = *value,
                RouteAttribute::MultiPath(hops) => devices.extend(hops.iter().map(|h| h.interface_index)),
                _ => {}
            }
        }
        found.extend(devices.into_iter().map(|ifindex| (metric, ifindex)));
    }
    found.sort_by_key(|(metric, _)| *metric);
    let mut devices: Vec<u32> = Vec::new();
    for (_, ifindex) in found {
        if !devices.contains(&ifindex) {
            devices.push(ifindex);
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_that_has_ended_tells_so() {
        let (connection, handle, changes) = new_multicast_connection(&[]).unwrap();
        drop(connection);
        assert!(!Netlink { handle, changes }.changed().await);
    }
}

//! Reads the host's devices, addresses and default routes, and tells when they change.
//!
//! Level-triggered: a notification only says that something changed; what is acted on is
//! a fresh dump, so a lost notification costs at most [`RESCAN`].

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use futures::{Stream, StreamExt, TryStreamExt, channel::mpsc::UnboundedReceiver};
use rtnetlink::{
    Handle, MulticastGroup, RouteMessageBuilder, new_multicast_connection,
    packet_core::{NetlinkMessage, NetlinkPayload},
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
use tokio::time::{Instant, timeout, timeout_at};

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
/// Routes too, which a router has a million of.
const ROUTES_RESCAN: Duration = Duration::from_secs(300);

/// What may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Changed {
    /// Devices and addresses.
    Devices,
    /// Default routes, too.
    DefaultRoutes,
}

/// A connection to the kernel's routing tables.
pub struct Netlink {
    handle: Handle,
    changes: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    /// Routes have to be read then at the latest.
    routes_due: Instant,
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
        Ok(Self { handle, changes, routes_due: Instant::now() + ROUTES_RESCAN })
    }

    /// For questions that only some ask.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits for a change of `before`, or until it is time to look anyway. Nothing when the connection has ended,
    /// as it does with the runtime: nothing will change or be answered any more.
    pub async fn changed(&mut self, before: &Host) -> Option<Changed> {
        let deadline = Instant::now() + RESCAN;
        let mut changed = None;
        while changed.is_none() {
            match timeout_at(deadline, self.changes.next()).await {
                Ok(None) => return None,
                Ok(Some((message, _))) => changed = what_changed(&message.payload, &before.default_routes),
                Err(_) => changed = Some(Changed::Devices),
            }
        }
        let settle = async {
            while let Ok(Some((message, _))) = timeout(SETTLE, self.changes.next()).await {
                changed = changed.max(what_changed(&message.payload, &before.default_routes));
            }
        };
        // A burst that goes on is read at the end and once before.
        let _ = timeout(SETTLE_AT_MOST, settle).await;
        if self.routes_due <= Instant::now() {
            changed = Some(Changed::DefaultRoutes);
        }
        if changed == Some(Changed::DefaultRoutes) {
            self.routes_due = Instant::now() + ROUTES_RESCAN;
        }
        changed
    }

    /// What the kernel says.
    ///
    /// # Errors
    /// When a dump fails.
    pub async fn host(&self) -> Result<Host, KernelError> {
        Ok(Host { default_routes: self.default_routes().await?, ..self.devices().await? })
    }

    /// The same after a change, with what has stayed of `before`.
    ///
    /// # Errors
    /// When a dump fails.
    pub async fn host_after(&self, changed: Changed, before: &Host) -> Result<Host, KernelError> {
        match changed {
            Changed::DefaultRoutes => self.host().await,
            Changed::Devices => {
                Ok(Host { default_routes: before.default_routes.clone(), ..self.devices().await? })
            }
        }
    }

    async fn devices(&self) -> Result<Host, KernelError> {
        let links: Vec<LinkMessage> = collect(self.handle.link().get().execute()).await?;
        let addresses: Vec<AddressMessage> = collect(self.handle.address().get().execute()).await?;
        Ok(Host {
            links: links.iter().map(link).map(|link| (link.ifindex, link)).collect::<BTreeMap<_, _>>(),
            addresses: addresses.iter().filter_map(address).collect(),
            default_routes: Vec::new(),
        })
    }

    /// The kernel shows default routes among all others only.
    async fn default_routes(&self) -> Result<Vec<u32>, KernelError> {
        let v4 = RouteMessageBuilder::<std::net::Ipv4Addr>::new().build();
        let v6 = RouteMessageBuilder::<std::net::Ipv6Addr>::new().build();
        let mut found = Vec::new();
        for family in [v4, v6] {
            let mut routes = self.handle.route().get(family).execute();
            while let Some(route) = routes.try_next().await? {
                if is_default(&route) {
                    found.push(route);
                }
            }
        }
        Ok(default_routes(&found))
    }
}

/// What a message is about; `uplinks` are the devices of default routes. Routes that are no default ones are nobody's
/// business here, and where the node is a router they change all the time.
fn what_changed(payload: &NetlinkPayload<RouteNetlinkMessage>, uplinks: &[u32]) -> Option<Changed> {
    let NetlinkPayload::InnerMessage(message) = payload else {
        // Some have been lost.
        return Some(Changed::DefaultRoutes);
    };
    // A device that goes down, or an address that goes, takes its routes with it, of which IPv4 does not tell.
    let of_device = |ifindex| match uplinks.contains(&ifindex) {
        true => Changed::DefaultRoutes,
        false => Changed::Devices,
    };
    match message {
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
            is_default(route).then_some(Changed::DefaultRoutes)
        }
        RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link) => {
            Some(of_device(link.header.index))
        }
        RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address) => {
            Some(of_device(address.header.index))
        }
        _ => None,
    }
}

fn is_default(route: &RouteMessage) -> bool {
    route.header.destination_prefix_length == 0 && route.header.kind == RouteType::Unicast
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
        let routes_due = Instant::now();
        assert_eq!(Netlink { handle, changes, routes_due }.changed(&Host::default()).await, None);
    }

    #[test]
    fn routes_are_read_again_when_a_default_one_may_have_changed() {
        let told = |message| what_changed(&NetlinkPayload::InnerMessage(message), &[2]);
        let route = |length| {
            let mut route = RouteMessage::default();
            (route.header.destination_prefix_length, route.header.kind) = (length, RouteType::Unicast);
            route
        };
        assert_eq!(told(RouteNetlinkMessage::NewRoute(route(24))), None);
        assert_eq!(told(RouteNetlinkMessage::DelRoute(route(0))), Some(Changed::DefaultRoutes));
        for (ifindex, expected) in [(2, Changed::DefaultRoutes), (3, Changed::Devices)] {
            let (mut link, mut address) = (LinkMessage::default(), AddressMessage::default());
            (link.header.index, address.header.index) = (ifindex, ifindex);
            assert_eq!(told(RouteNetlinkMessage::NewLink(link)), Some(expected));
            assert_eq!(told(RouteNetlinkMessage::DelAddress(address)), Some(expected));
        }
        assert_eq!(what_changed(&NetlinkPayload::Overrun(Vec::new()), &[]), Some(Changed::DefaultRoutes));
    }
}

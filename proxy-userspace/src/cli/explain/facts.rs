//! What is known before a packet is sent on trial: who the client is, which row answers, and
//! whom it lets choose among.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use anyhow::{Context, Result};
use proxy_common::{
    addr::{Ip4, Ip6},
    maps::{
        affinity::AffinityKey,
        backends::flags::LOCAL,
        conntrack::{CtKey, EGRESS, INGRESS},
        devices::{self, Device},
        frontends::{ClientClass, ClientRule, Frontend, FrontendKey, Kind, flags},
        node_addresses::flags::NODE_PORTS,
        settings::{Settings, flags as setting},
        slots::SlotRange,
    },
    tuple::Tuple,
};

use super::{
    answer,
    ask::{Answers, From, ports},
};
use crate::{
    cli::rows::{Names, Rows, socket},
    dataplane::MapAddr,
    kernel::{Host, LinkKind, Netlink, Pins, Question, XdpStatus},
    model::Algorithm,
};

/// Where ports of clients are drawn from on most systems.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 40_000..=60_999;
/// For clients outside that nobody named (RFC 5737, RFC 3849).
const OUTSIDE: [&str; 2] = ["203.0.113.1", "2001:db8::1"];

/// The question, with everything that was left out found.
pub(super) struct Asked {
    pub(super) from: From,
    pub(super) sport: Option<u16>,
    pub(super) to: IpAddr,
    pub(super) port: u16,
    pub(super) protocol: u8,
    pub(super) via: Option<u32>,
}

/// What does not depend on the family.
pub(super) struct Facts<'a> {
    pub(super) settings: Settings,
    pub(super) devices: HashMap<u32, Device>,
    pub(super) xdp: Vec<XdpStatus>,
    pub(super) names: &'a Names,
    pub(super) now: u64,
    pub(super) netlink: &'a Netlink,
    pub(super) host: &'a Host,
    pub(super) pins: &'a Pins,
}

/// Who sends the packet.
pub(super) struct Sender<A> {
    pub(super) address: A,
    pub(super) class: ClientClass,
    pub(super) why: String,
    /// The device its packets come in by; of a process of this host, the one they leave by. None
    /// if the host has no route for them.
    pub(super) device: Option<u32>,
    /// Its sockets are this node's.
    pub(super) is_here: bool,
}

impl Facts<'_> {
    /// Who asks, and by which device.
    pub(super) async fn sender<A: MapAddr>(&self, rows: &Rows<A>, asked: &Asked) -> Result<Sender<A>> {
        let own =
            |ip: &IpAddr| ip.is_loopback() || rows.node_addresses.iter().any(|(a, _)| (*a).into() == *ip);
        match asked.from {
            From::Host => self.process::<A>(None, asked).await,
            From::Address(ip) if own(&ip) => self.process::<A>(Some(ip), asked).await,
            From::Address(ip) => {
                let way = self.netlink.way(Question { to: ip, from: None, came_by: None }).await?;
                let device = asked.via.or_else(|| way.map(|way| way.ifindex));
                let device = device.with_context(|| {
                    format!("this host has no route to {ip}; name the device it comes in by: --via")
                })?;
                let on_link = way.is_some_and(|way| way.gateway.is_none());
                self.stranger(address(ip)?, device, on_link)
            }
            From::Outside => {
                let ip = OUTSIDE[usize::from(asked.to.is_ipv6())].parse().context("an address")?;
                let device = asked.via.or_else(|| self.host.default_routes.first().copied());
                let device = device.context("this host has no default route; name the device: --via")?;
                self.stranger(address(ip)?, device, false)
            }
        }
    }

    /// A process of this host. The kernel chooses its address as it chooses the way.
    async fn process<A: MapAddr>(&self, from: Option<IpAddr>, asked: &Asked) -> Result<Sender<A>> {
        let way = self.netlink.way(Question { to: asked.to, from, came_by: None }).await?;
        let any = || {
            self.host.owned().into_iter().find(|ip| ip.is_ipv4() == asked.to.is_ipv4() && !ip.is_loopback())
        };
        let source = from.or_else(|| way.and_then(|way| way.source)).or_else(any);
        let source = source.context("this host has no address of this family")?;
        Ok(Sender {
            address: address(source)?,
            class: ClientClass::Node,
            why: "a process in this host's network".into(),
            device: way.map(|way| way.ifindex),
            is_here: true,
        })
    }

    fn stranger<A: MapAddr>(&self, client: A, device: u32, on_link: bool) -> Result<Sender<A>> {
        let device = self.port_of(device);
        let by_device = self.settings.flags & setting::PODS_BY_DEVICE != 0
            && self.devices.get(&device).is_some_and(|d| d.flags & devices::flags::POD != 0);
        let range = self.pod_range(client.into());
        let name = name_of(self.host, device);
        let (class, why) = match range {
            _ if by_device => {
                (ClientClass::Pod, format!("what comes in by {name} counts as a pod's (detectLocalMode)"))
            }
            Some((range, true)) => (ClientClass::Pod, format!("in the pods' range {range}")),
            Some((range, false)) => (ClientClass::External, format!("outside the pods' range {range}")),
            None if self.settings.flags & setting::PODS_BY_DEVICE != 0 => {
                (ClientClass::External, format!("{name} leads to no pods (detectLocalMode)"))
            }
            None => (ClientClass::External, "pods are not told from others (detectLocalMode)".into()),
        };
        let is_here = on_link && !self.host.default_routes.contains(&device);
        Ok(Sender { address: client, class, why, device: Some(device), is_here })
    }

    /// The range of pods of the address's family, and whether it is in there.
    fn pod_range(&self, ip: IpAddr) -> Option<(String, bool)> {
        use proxy_common::addr::Addr as _;
        let s = &self.settings;
        match ip {
            IpAddr::V4(ip) => {
                let (range, bits) = (s.pod_cidr_v4, s.pod_cidr_bits_v4);
                let text = || format!("{}/{bits}", std::net::Ipv4Addr::from(range.octets));
                (s.flags & setting::PODS_BY_CIDR_V4 != 0)
                    .then(|| (text(), Ip4 { octets: ip.octets() }.in_prefix(&range, bits)))
            }
            IpAddr::V6(ip) => {
                let (range, bits) = (s.pod_cidr_v6, s.pod_cidr_bits_v6);
                let text = || format!("{}/{bits}", std::net::Ipv6Addr::from(range.octets));
                (s.flags & setting::PODS_BY_CIDR_V6 != 0)
                    .then(|| (text(), Ip6 { octets: ip.octets() }.in_prefix(&range, bits)))
            }
        }
    }

    /// Programs are at the ports of a bridge and not at the bridge; any port stands for all.
    pub(super) fn port_of(&self, device: u32) -> u32 {
        if self.host.links.get(&device).is_none_or(|link| link.kind != LinkKind::Bridge) {
            return device;
        }
        let ports = || self.host.links.values().filter(|link| link.master == Some(device)).map(|l| l.ifindex);
        let leads_to_pods =
            |port: &u32| self.devices.get(port).is_some_and(|d| d.flags & devices::flags::POD != 0);
        ports().find(leads_to_pods).or_else(|| ports().next()).unwrap_or(device)
    }
}

/// What becomes of a destination at first sight.
pub(super) enum Found<'a, A> {
    /// This row answers.
    Row(&'a FrontendKey<A>, &'a Frontend),
    /// None does, and why.
    None(String),
}

/// The row that answers, found as the programs find it.
pub(super) fn lookup<'a, A: MapAddr>(rows: &'a Rows<A>, tuple: &Tuple<A>) -> Found<'a, A> {
    let row = |addr: A, port: u16, proto: u8| {
        let key = FrontendKey { addr, port, proto, pad: 0 };
        rows.frontends.iter().find(|(other, _)| *other == key)
    };
    let (ip, port) = (tuple.dst.into(), tuple.dport);
    let exact = row(tuple.dst, port, tuple.proto);
    let own = rows.node_addresses.iter().find(|(addr, _)| *addr == tuple.dst);
    if let Some((key, row)) = exact {
        return Found::Row(key, row);
    }
    if let Some((_, bits)) = own {
        if bits & NODE_PORTS == 0 {
            return Found::None(format!(
                "{ip} is this node's own and takes no NodePorts (nodePortAddresses)"
            ));
        }
        if let Some((key, row)) = row(A::default(), port, tuple.proto) {
            return Found::Row(key, row);
        }
        return Found::None(format!(
            "{ip} is this node's own, and no service has this NodePort: the host's own sockets answer"
        ));
    }
    let declared = rows.frontends.iter().filter(|(key, _)| key.addr == tuple.dst && key.port != 0);
    let mut declared: Vec<Answers> = declared
        .map(|(key, row)| Answers {
            service: row.service,
            address: ip,
            port: key.port,
            protocol: key.proto,
            is_cluster_ip: row.kind == Kind::CLUSTER_IP.0,
        })
        .collect();
    declared.sort();
    Found::None(if declared.is_empty() {
        format!(
            "no service answers on {ip} here (load balancers' addresses with ipMode: Proxy are left to the load balancer)"
        )
    } else {
        format!("{ip} answers on other ports only: {}", ports(&declared))
    })
}

/// The rule for a class in phrases, the most important first.
pub(super) fn phrases(rule: ClientRule) -> Vec<&'static str> {
    let one = |bits, set, unset| if rule.has(bits) { set } else { unset };
    if rule.has(ClientRule::DENY) {
        return vec!["not admitted"];
    }
    vec![
        one(ClientRule::LOCAL, "backends on this node only", "backends on all nodes"),
        match () {
            () if rule.has(ClientRule::DSR) => "backends on other nodes answer the client themselves (DSR)",
            () if rule.has(ClientRule::SNAT) => "masqueraded",
            () => "keeps its address",
        },
        one(ClientRule::DROP, "silence if there is no backend", "refused if there is no backend"),
    ]
}

/// The slots that a class chooses among.
pub(super) fn range(row: &Frontend, rule: ClientRule) -> SlotRange {
    if rule.has(ClientRule::LOCAL) { row.local } else { row.cluster }
}

/// The backends of a range with their parts of it.
pub(super) fn candidates<A: MapAddr>(rows: &Rows<A>, range: SlotRange) -> Vec<answer::Candidate> {
    let mut slots: BTreeMap<u32, u32> = BTreeMap::new();
    rows.slots_of(range).for_each(|id| *slots.entry(id).or_default() += 1);
    let view = |(id, count): (u32, u32)| {
        let backend = rows.backends.get(&id);
        answer::Candidate {
            address: backend.map(|b| socket(b.addr, b.port)),
            backend_id: id,
            local: backend.is_some_and(|b| b.flags & LOCAL != 0),
            share: f64::from(count) / f64::from(range.len.max(1)),
            chosen: false,
        }
    };
    let mut found: Vec<_> = slots.into_iter().map(view).collect();
    found.sort_by_key(|candidate| (candidate.address, candidate.backend_id));
    found
}

/// Whether the client's row of the affinity table counts, if it has one.
pub(super) fn affinity<A: MapAddr>(
    rows: &Rows<A>,
    row: &Frontend,
    client: A,
    candidates: &[answer::Candidate],
    now: u64,
) -> Option<answer::Affinity> {
    let key = AffinityKey { client, service: row.service };
    let (_, found) = rows.affinity.iter().find(|(other, _)| *other == key)?;
    if row.affinity_secs == 0 {
        return None;
    }
    let age = now.saturating_sub(found.last_used) / 1_000_000_000;
    let left_seconds = u64::from(row.affinity_secs).checked_sub(age);
    Some(answer::Affinity {
        backend: rows.backends.get(&found.backend).map(|b| socket(b.addr, b.port)),
        left_seconds,
        counts: left_seconds.is_some() && candidates.iter().any(|c| c.backend_id == found.backend),
    })
}

/// The row as it is shown.
pub(super) fn frontend<A: MapAddr>(
    names: &Names,
    key: &FrontendKey<A>,
    row: &Frontend,
    rule: ClientRule,
) -> answer::Frontend {
    let is_node_port = row.kind == Kind::NODE_PORT.0;
    answer::Frontend {
        service: names.of(row.service),
        service_id: row.service,
        kind: Kind(row.kind).name(),
        address: if is_node_port { "*".to_owned() } else { key.addr.into().to_string() },
        port: key.port,
        rule: phrases(rule),
        algorithm: if row.flags & flags::MAGLEV == 0 { Algorithm::Random } else { Algorithm::Maglev }.name(),
        affinity_seconds: row.affinity_secs,
        source_ranges_admit: None,
    }
}

/// The port asked for, else one under which the client has no connection.
pub(super) fn source_port<A: MapAddr>(rows: &Rows<A>, tuple: &Tuple<A>, asked: Option<u16>) -> Result<u16> {
    let is_free = |port: &u16| {
        let tuple = Tuple { sport: *port, ..*tuple };
        [INGRESS, EGRESS].iter().all(|hook| !rows.conntrack.contains_key(&CtKey::new(&tuple, *hook)))
    };
    let free = || EPHEMERAL.into_iter().find(is_free);
    asked.or_else(free).context("the client has a connection under every port; choose one: --sport")
}

/// The name of a device, or its index if it is gone.
pub(super) fn name_of(host: &Host, index: u32) -> String {
    host.links.get(&index).map_or_else(|| format!("#{index}"), |link| link.name.clone())
}

fn address<A: MapAddr>(ip: IpAddr) -> Result<A> {
    A::from_ip(ip).with_context(|| format!("{ip} is of another family"))
}

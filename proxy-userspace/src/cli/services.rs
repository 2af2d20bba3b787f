//! `shunt service list`: who answers on which address, and with which backends.

use std::collections::{HashMap, HashSet};

use proxy_common::{
    maps::{
        backends::{Backend, flags::LOCAL},
        conntrack::Role,
        frontends::{ClientClass, ClientRule, Frontend, FrontendKey, Kind, flags},
        node_addresses::flags::NODE_PORTS,
        slots::SlotRange,
    },
    proto,
};
use serde::Serialize;

use super::{
    conns::is_open,
    rows::{Names, Rows, ShownAddr, socket},
};
use crate::model::{Algorithm, Mode};

/// One address a service answers on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendView {
    /// Namespace, name and port name.
    pub service: String,
    /// Key in the map `services`.
    pub service_id: u32,
    /// Which face of the service it is.
    pub kind: &'static str,
    /// The address; `*` for NodePorts.
    pub address: String,
    /// For NodePorts, the addresses that take them.
    pub node_addresses: Vec<String>,
    /// The port; 0 where all ports are meant.
    pub port: u16,
    /// TCP, UDP, SCTP, or any.
    pub protocol: &'static str,
    /// The traffic policy that shows in the rules: the internal one for cluster IPs, else the external one.
    pub policy: &'static str,
    /// The way of connections from outside to backends on other nodes: `snat` or `dsr`.
    pub mode: &'static str,
    /// How a backend is drawn: `random` or `maglev`.
    pub algorithm: &'static str,
    /// How each class of clients is served.
    pub rules: Rules,
    /// Seconds a client sticks to its backend; 0 is off.
    pub affinity_seconds: u32,
    /// Open connections that packets are rewritten for.
    pub connections: usize,
    /// Who answers.
    pub backends: Vec<BackendView>,
}

/// How each class of clients is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rules {
    /// Pods of the cluster.
    pub pod: Vec<&'static str>,
    /// Processes in the host's network.
    pub node: Vec<&'static str>,
    /// Everybody else.
    pub external: Vec<&'static str>,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendView {
    /// Address and port; a number in `?()` if the backend is missing.
    pub address: String,
    /// Runs on this node.
    pub local: bool,
    /// Open connections from this frontend that packets are rewritten for.
    pub connections: usize,
}

/// All frontends of a family.
pub fn frontends<A: ShownAddr>(rows: &Rows<A>, names: &Names) -> Vec<FrontendView> {
    let connections = connections(rows);
    rows.frontends.iter().map(|(key, row)| frontend(rows, names, &connections, key, row)).collect()
}

/// The order in which they are shown.
pub fn sort(views: &mut [FrontendView]) {
    let rank = |v: &FrontendView| {
        ["Address", "ClusterIP", "NodePort", "ExternalIP"].iter().position(|k| *k == v.kind)
    };
    views.sort_by(|a, b| {
        let key = |v: &FrontendView| (v.service.clone(), rank(v).unwrap_or(usize::MAX), v.address.clone());
        (key(a), a.port, a.protocol).cmp(&(key(b), b.port, b.protocol))
    });
}

/// Open connections.
struct Connections<A> {
    by_frontend: HashMap<FrontendKey<A>, usize>,
    by_backend: HashMap<(FrontendKey<A>, u32), usize>,
}

fn connections<A: ShownAddr>(rows: &Rows<A>) -> Connections<A> {
    let known: HashMap<_, _> = rows.frontends.iter().map(|(key, row)| (*key, row)).collect();
    let mut counts = Connections { by_frontend: HashMap::new(), by_backend: HashMap::new() };
    for (key, entry) in &rows.conntrack {
        if !Role(entry.role).is_primary() || !is_open(rows, key, entry) {
            continue;
        }
        let exact = FrontendKey { addr: key.dst, port: key.dport, proto: key.proto, pad: 0 };
        let any = FrontendKey { addr: A::default(), ..exact };
        let frontend = if known.contains_key(&exact) { exact } else { any };
        *counts.by_frontend.entry(frontend).or_default() += 1;
        *counts.by_backend.entry((frontend, entry.backend)).or_default() += 1;
    }
    counts
}

fn frontend<A: ShownAddr>(
    rows: &Rows<A>,
    names: &Names,
    connections: &Connections<A>,
    key: &FrontendKey<A>,
    row: &Frontend,
) -> FrontendView {
    let kind = Kind(row.kind);
    let is_node_port = kind == Kind::NODE_PORT;
    FrontendView {
        service: names.of(row.service),
        service_id: row.service,
        kind: kind.name(),
        address: if is_node_port { "*".into() } else { key.addr.into().to_string() },
        node_addresses: if is_node_port { node_port_addresses(rows) } else { Vec::new() },
        port: key.port,
        protocol: proto::name(key.proto).unwrap_or("any"),
        policy: policy(kind, row.rules),
        mode: if has_rule(row, ClientRule::DSR) { Mode::Dsr } else { Mode::Snat }.name(),
        algorithm: if row.flags & flags::MAGLEV == 0 { Algorithm::Random } else { Algorithm::Maglev }.name(),
        rules: rules(row.rules),
        affinity_seconds: row.affinity_secs,
        connections: connections.by_frontend.get(key).copied().unwrap_or(0),
        backends: backends(rows, connections, key, row),
    }
}

/// True when clients of some class are served by a rule with `bits`.
fn has_rule(row: &Frontend, bits: u32) -> bool {
    let classes = [ClientClass::Pod, ClientClass::Node, ClientClass::External];
    classes.into_iter().any(|class| ClientRule::of(row.rules, class).has(bits))
}

fn node_port_addresses<A: ShownAddr>(rows: &Rows<A>) -> Vec<String> {
    let mut taking: Vec<A> =
        rows.node_addresses.iter().filter(|(_, flags)| flags & NODE_PORTS != 0).map(|(a, _)| *a).collect();
    taking.sort();
    taking.into_iter().map(|addr| addr.into().to_string()).collect()
}

fn policy(kind: Kind, rules: u32) -> &'static str {
    let class = if kind == Kind::CLUSTER_IP { ClientClass::Pod } else { ClientClass::External };
    if ClientRule::of(rules, class).has(ClientRule::LOCAL) { "Local" } else { "Cluster" }
}

fn rules(rules: u32) -> Rules {
    let words = |class| {
        let rule = ClientRule::of(rules, class);
        let names = [
            (ClientRule::LOCAL, "local"),
            (ClientRule::SNAT, "snat"),
            (ClientRule::DROP, "drop"),
            (ClientRule::DENY, "deny"),
            (ClientRule::DSR, "dsr"),
        ];
        names.into_iter().filter(|(bit, _)| rule.has(*bit)).map(|(_, name)| name).collect()
    };
    Rules {
        pod: words(ClientClass::Pod),
        node: words(ClientClass::Node),
        external: words(ClientClass::External),
    }
}

fn backends<A: ShownAddr>(
    rows: &Rows<A>,
    connections: &Connections<A>,
    key: &FrontendKey<A>,
    row: &Frontend,
) -> Vec<BackendView> {
    // With direct server return the local range says whom other nodes may send to, not who is drawn.
    let local = if has_rule(row, ClientRule::DSR) { SlotRange::default() } else { row.local };
    let ids: HashSet<_> = [row.cluster, local].into_iter().flat_map(|range| slots(rows, range)).collect();
    let mut found: Vec<_> = ids.into_iter().map(|id| (rows.backends.get(&id), id)).collect();
    found.sort_by_key(|(backend, id)| (backend.map(|b| (b.addr, b.port)), *id));
    let view = |(backend, id): (Option<&Backend<A>>, u32)| BackendView {
        address: backend.map_or_else(|| format!("?({id})"), |b| socket(b.addr, b.port).to_string()),
        local: backend.is_some_and(|b| b.flags & LOCAL != 0),
        connections: connections.by_backend.get(&(*key, id)).copied().unwrap_or(0),
    };
    found.into_iter().map(view).collect()
}

/// The slots of a range, as far as they exist.
fn slots<A: ShownAddr>(rows: &Rows<A>, range: SlotRange) -> impl Iterator<Item = u32> {
    let (start, len) = (range.offset as usize, range.len as usize);
    rows.slots.iter().skip(start).take(len).copied()
}

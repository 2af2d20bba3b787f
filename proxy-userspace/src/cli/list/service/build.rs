//! From rows to views: which backends a frontend leads to, and what its rules mean.

use std::collections::{HashMap, HashSet};

use proxy_common::{
    maps::{
        backends::{Backend, flags::LOCAL},
        frontends::{ClientClass, ClientRule, Frontend, FrontendKey, Kind, flags},
        node_addresses::flags::NODE_PORTS,
        slots::SlotRange,
    },
    proto,
};

use super::{BackendView, FrontendView, Rules};
use crate::{
    cli::{
        list::conn::open_connections,
        rows::{Names, Rows, socket},
        usage::{Counts, Usage},
    },
    dataplane::MapAddr,
    model::{Algorithm, Mode},
};

/// All frontends of a family.
pub fn frontends<A: MapAddr>(rows: &Rows<A>, names: &Names) -> Vec<FrontendView> {
    let connections = Connections::of(rows);
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

/// What went by each frontend. Open connections are told apart by address; all else is counted for
/// all addresses of one kind together.
struct Connections<A> {
    by_frontend: HashMap<FrontendKey<A>, u64>,
    by_backend: HashMap<(FrontendKey<A>, u32), u64>,
    usage: Usage,
    totals: HashMap<(u32, u32), Counts>,
}

impl<A: MapAddr> Connections<A> {
    fn of(rows: &Rows<A>) -> Self {
        let (by_backend, usage) = (open_connections(rows), Usage::of(rows));
        let mut by_frontend = HashMap::new();
        for ((frontend, _), count) in &by_backend {
            *by_frontend.entry(*frontend).or_default() += count;
        }
        let mut totals: HashMap<_, Counts> = HashMap::new();
        for (key, counts) in usage.iter() {
            *totals.entry((key.service, key.kind)).or_default() += *counts;
        }
        Self { by_frontend, by_backend, usage, totals }
    }

    fn of_frontend(&self, key: &FrontendKey<A>, row: &Frontend) -> Counts {
        let totals = self.totals.get(&(row.service, u32::from(row.kind))).copied().unwrap_or_default();
        Counts { connections: self.by_frontend.get(key).copied().unwrap_or(0), ..totals }
    }

    fn of_backend(&self, key: &FrontendKey<A>, row: &Frontend, id: u32) -> Counts {
        let counts = self.usage.of_backend(row.service, row.kind, id);
        Counts { connections: self.by_backend.get(&(*key, id)).copied().unwrap_or(0), ..counts }
    }
}

fn frontend<A: MapAddr>(
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
        family: A::FAMILY.name(),
        port: key.port,
        protocol: proto::name(key.proto).unwrap_or("any"),
        policy: policy(kind, row.rules),
        mode: if has_rule(row, ClientRule::DSR) { Mode::Dsr } else { Mode::Snat }.name(),
        algorithm: if row.flags & flags::MAGLEV == 0 { Algorithm::Random } else { Algorithm::Maglev }.name(),
        rules: rules(row.rules),
        affinity_seconds: row.affinity_secs,
        counts: Some(connections.of_frontend(key, row)),
        backends: backends(rows, connections, key, row),
        refused: None,
    }
}

/// A Service for which there is no room.
pub(super) fn refused(service: String, reason: String) -> FrontendView {
    FrontendView {
        service,
        service_id: 0,
        kind: "refused",
        address: String::new(),
        node_addresses: Vec::new(),
        family: "",
        port: 0,
        protocol: "",
        policy: "",
        mode: Mode::default().name(),
        algorithm: Algorithm::default().name(),
        rules: Rules { pod: Vec::new(), node: Vec::new(), external: Vec::new() },
        affinity_seconds: 0,
        counts: None,
        backends: Vec::new(),
        refused: Some(reason),
    }
}

/// True when clients of some class are served by a rule with `bits`.
fn has_rule(row: &Frontend, bits: u32) -> bool {
    let classes = [ClientClass::Pod, ClientClass::Node, ClientClass::External];
    classes.into_iter().any(|class| ClientRule::of(row.rules, class).has(bits))
}

fn node_port_addresses<A: MapAddr>(rows: &Rows<A>) -> Vec<String> {
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
    Rules {
        pod: rule_words(rules, ClientClass::Pod),
        node: rule_words(rules, ClientClass::Node),
        external: rule_words(rules, ClientClass::External),
    }
}

/// What a frontend's rules say of one class of clients, a word for each bit.
pub fn rule_words(rules: u32, class: ClientClass) -> Vec<&'static str> {
    let rule = ClientRule::of(rules, class);
    let names = [
        (ClientRule::LOCAL, "local"),
        (ClientRule::SNAT, "snat"),
        (ClientRule::DROP, "drop"),
        (ClientRule::DENY, "deny"),
        (ClientRule::DSR, "dsr"),
    ];
    names.into_iter().filter(|(bit, _)| rule.has(*bit)).map(|(_, name)| name).collect()
}

fn backends<A: MapAddr>(
    rows: &Rows<A>,
    connections: &Connections<A>,
    key: &FrontendKey<A>,
    row: &Frontend,
) -> Vec<BackendView> {
    // With direct server return the local range says whom other nodes may send to, not who is drawn.
    let local = if has_rule(row, ClientRule::DSR) { SlotRange::default() } else { row.local };
    let ids: HashSet<_> = [row.cluster, local].into_iter().flat_map(|range| rows.slots_of(range)).collect();
    let mut found: Vec<_> = ids.into_iter().map(|id| (rows.backends.get(&id), id)).collect();
    found.sort_by_key(|(backend, id)| (backend.map(|b| (b.addr, b.port)), *id));
    let view = |(backend, id): (Option<&Backend<A>>, u32)| BackendView {
        address: backend.map_or_else(|| format!("?({id})"), |b| socket(b.addr, b.port).to_string()),
        local: backend.is_some_and(|b| b.flags & LOCAL != 0),
        counts: Some(connections.of_backend(key, row, id)),
    };
    found.into_iter().map(view).collect()
}

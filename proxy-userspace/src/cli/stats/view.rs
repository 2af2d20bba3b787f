//! One entry for each face of a service, with its backends: the unit in which is counted. The addresses
//! of one kind, such as those of several load balancers, share their counters.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
};

use proxy_common::{
    maps::{
        backends::flags::LOCAL,
        frontends::{Frontend, FrontendKey, Kind},
    },
    proto,
};
use serde::Serialize;

use super::super::{
    list::filter::Facets,
    rows::{Names, Rows, Tables, socket},
    usage::{Counts, Usage},
};
use crate::dataplane::MapAddr;

/// One face of a service port in one family.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FaceView {
    /// Namespace, name and port name.
    pub service: String,
    /// Key in the map `services`.
    pub service_id: u32,
    /// Which face of the service it is.
    pub kind: &'static str,
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
    /// TCP, UDP or SCTP.
    pub protocol: &'static str,
    /// The port clients use.
    pub port: u16,
    /// The addresses it answers on; `*` for NodePorts.
    pub addresses: Vec<String>,
    /// All that went by it, to backends that are gone, too.
    #[serde(flatten)]
    pub counts: Counts,
    /// Per second, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
    /// The backends it leads to, and those whose connections go on.
    pub backends: Vec<ShareView>,
}

/// One backend of a face.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShareView {
    /// Address and port of the endpoint.
    pub address: SocketAddr,
    /// It runs on this node.
    pub local: bool,
    /// Its part of new connections from anywhere, in percent; 0 while it drains.
    pub share: f64,
    /// What went there by this face.
    #[serde(flatten)]
    pub counts: Counts,
    /// Per second, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
}

/// How fast counters grow, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rates {
    /// Connections opened.
    pub connections_per_second: f64,
    /// Packets from clients.
    pub in_packets_per_second: f64,
    /// Packets to clients.
    pub out_packets_per_second: f64,
    /// Bytes from clients.
    pub in_bytes_per_second: f64,
    /// Bytes to clients.
    pub out_bytes_per_second: f64,
}

impl Rates {
    /// From what came in some seconds.
    pub fn of(counts: &Counts, seconds: f64) -> Self {
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Self {
            connections_per_second: rate(counts.opened),
            in_packets_per_second: rate(counts.in_packets),
            out_packets_per_second: rate(counts.out_packets),
            in_bytes_per_second: rate(counts.in_bytes),
            out_bytes_per_second: rate(counts.out_bytes),
        }
    }
}

/// What was counted in both families.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    v4: Usage,
    v6: Usage,
}

impl Sample {
    /// What the tables tell.
    pub fn of(tables: &Tables) -> Self {
        Self { v4: Usage::of(&tables.v4), v6: Usage::of(&tables.v6) }
    }

    /// What came since an earlier time.
    pub fn since(&self, earlier: &Self) -> Self {
        Self { v4: self.v4.since(&earlier.v4), v6: self.v6.since(&earlier.v6) }
    }

    /// Every face of every service, by name, kind and family.
    pub fn faces(&self, tables: &Tables) -> Vec<FaceView> {
        let mut views = faces(&tables.v4, &self.v4, &tables.names);
        views.extend(faces(&tables.v6, &self.v6, &tables.names));
        views.sort_by(|a, b| a.order().cmp(&b.order()));
        views
    }
}

impl FaceView {
    fn order(&self) -> (&str, &str, &str, &str) {
        (&self.service, self.protocol, self.kind, self.family)
    }

    /// Takes the counts for what came in some seconds.
    pub fn set_rates(&mut self, seconds: f64) {
        self.rates = Some(Rates::of(&self.counts, seconds));
        for backend in &mut self.backends {
            backend.rates = Some(Rates::of(&backend.counts, seconds));
        }
    }

    /// The first address with the port, and how many more there are.
    pub fn address(&self) -> String {
        let first = self.addresses.first().map_or("", String::as_str);
        let shown = match first.parse::<IpAddr>() {
            Ok(address) => SocketAddr::new(address, self.port).to_string(),
            Err(_) => format!("{first}:{}", self.port),
        };
        match self.addresses.len() {
            0 | 1 => shown,
            count => format!("{shown} +{}", count - 1),
        }
    }

    /// What filters look at.
    pub fn facets(&self) -> Facets<'_> {
        let own = self.addresses.iter().filter_map(|address| address.parse().ok());
        let backends = self.backends.iter();
        Facets {
            services: vec![&self.service],
            addresses: own.chain(backends.clone().map(|backend| backend.address.ip())).collect(),
            ports: std::iter::once(self.port).chain(backends.map(|backend| backend.address.port())).collect(),
            protocol: Some(self.protocol),
            family: self.family,
        }
    }
}

/// The frontends of one kind of a service.
type Members<'a, A> = Vec<(&'a FrontendKey<A>, &'a Frontend)>;

fn faces<A: MapAddr>(rows: &Rows<A>, usage: &Usage, names: &Names) -> Vec<FaceView> {
    let mut groups: BTreeMap<(u32, u8), Members<'_, A>> = BTreeMap::new();
    for (key, row) in rows.frontends.iter().filter(|(_, row)| Kind(row.kind) != Kind::ADDRESS) {
        groups.entry((row.service, row.kind)).or_default().push((key, row));
    }
    let mut counted: HashMap<(u32, u32), BTreeSet<u32>> = HashMap::new();
    let mut sums: HashMap<(u32, u32), Counts> = HashMap::new();
    for (key, counts) in usage.iter() {
        counted.entry((key.service, key.kind)).or_default().insert(key.backend);
        *sums.entry((key.service, key.kind)).or_default() += *counts;
    }
    let view = |((service, kind), members): (&(u32, u8), &Members<'_, A>)| {
        let (first, row) = members.first()?;
        let id = (*service, u32::from(*kind));
        let mut addresses: Vec<A> = members.iter().map(|(key, _)| key.addr).collect();
        addresses.sort();
        let shown = |addr: A| match Kind(*kind) {
            Kind::NODE_PORT => "*".to_owned(),
            _ => addr.into().to_string(),
        };
        Some(FaceView {
            service: names.of(*service),
            service_id: *service,
            kind: Kind(*kind).name(),
            family: A::FAMILY.name(),
            protocol: proto::name(first.proto).unwrap_or("any"),
            port: first.port,
            addresses: addresses.into_iter().map(shown).collect(),
            counts: sums.get(&id).copied().unwrap_or_default(),
            rates: None,
            backends: shares(rows, usage, row, counted.get(&id)),
        })
    };
    groups.iter().filter_map(view).collect()
}

/// The backends of a face, by address.
fn shares<A: MapAddr>(
    rows: &Rows<A>,
    usage: &Usage,
    frontend: &Frontend,
    counted: Option<&BTreeSet<u32>>,
) -> Vec<ShareView> {
    let mut slots: HashMap<u32, usize> = HashMap::new();
    rows.slots_of(frontend.cluster).for_each(|id| *slots.entry(id).or_default() += 1);
    let local: BTreeSet<u32> = rows.slots_of(frontend.local).collect();
    let all: usize = slots.values().sum();
    let ids: BTreeSet<u32> =
        slots.keys().chain(&local).chain(counted.into_iter().flatten()).copied().collect();
    let view = |id: u32| {
        let row = rows.backends.get(&id)?;
        let own = slots.get(&id).copied().unwrap_or(0);
        // Where policies know only this node, its backends share alike.
        let share = match all {
            0 if local.contains(&id) => 1.0 / local.len() as f64,
            0 => 0.0,
            all => own as f64 / all as f64,
        };
        Some(ShareView {
            address: socket(row.addr, row.port),
            local: row.flags & LOCAL != 0,
            share: (share * 1000.0).round() / 10.0,
            counts: usage.of_backend(frontend.service, frontend.kind, id),
            rates: None,
        })
    };
    let mut views: Vec<_> = ids.into_iter().filter_map(view).collect();
    views.sort_by_key(|view| view.address);
    views
}

//! How near the datapath is to its limits: rows per map, source ports of masquerading.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use proxy_common::proto;

use super::{
    FamilyMaps, MapAddr, MapName, MapStore, Reconciler,
    family::FamilyTable,
    sweep::{Clients, Flows, Survey},
};
use crate::model::Family;

/// Levels of what can run out, at the time of the last sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Every map that can fill up.
    pub maps: Vec<MapFill>,
    /// Every node address that connections are masqueraded behind.
    pub snat: Vec<SnatPorts>,
    /// Lookup tables that are smaller than they should be, for want of slots.
    pub reduced_tables: usize,
    /// Slots with which lookup tables keep their size when they are made anew; of the family that needs more.
    pub slots_for_tables: usize,
    /// Maps that lack room for a Service, each with the rows that the smallest of those needs by itself, if these are
    /// too many.
    pub lacking: BTreeMap<MapName, usize>,
}

/// Rows of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapFill {
    /// The map.
    pub map: MapName,
    /// Its family, if there is one map for each.
    pub family: Option<Family>,
    /// Rows in use. Of affinity, those that count: old ones stay until the kernel needs their room.
    pub rows: usize,
    /// Of these, rows of connections that make room for others, however many there are.
    pub transient: usize,
    /// Rows it has room for.
    pub capacity: usize,
}

/// Source ports in use behind one node address.
///
/// A port can be used once for each backend. So there is no limit to all of them together,
/// but there is one to those in use towards a single backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnatPorts {
    /// The node address.
    pub address: IpAddr,
    /// TCP, UDP or SCTP, as an IANA protocol number.
    pub proto: u8,
    /// Ports in use, towards all backends.
    pub in_use: usize,
    /// The backend towards which most are in use.
    pub backend: SocketAddr,
    /// Ports in use towards that backend.
    pub fullest: usize,
    /// Ports there are towards each backend.
    pub capacity: usize,
}

impl MapFill {
    /// 0 for empty to 1 for full of rows that make no room for others.
    pub fn level(&self) -> f64 {
        level(self.lasting(), self.capacity)
    }

    /// Rows that make no room for others.
    pub fn lasting(&self) -> usize {
        self.rows.saturating_sub(self.transient)
    }
}

impl SnatPorts {
    /// 0 to 1, where no further connection to the fullest backend finds a port.
    pub fn level(&self) -> f64 {
        level(self.fullest, self.capacity)
    }

    /// The name of the protocol.
    pub fn protocol(&self) -> &'static str {
        proto::name(self.proto).unwrap_or("unknown")
    }
}

fn level(used: usize, capacity: usize) -> f64 {
    if capacity == 0 { 0.0 } else { used as f64 / capacity as f64 }
}

impl Reconciler {
    /// The levels, as far as bookkeeping and the last look at the flows tell.
    pub fn pressure(&self, maps: &mut impl MapStore, survey: &Survey) -> Pressure {
        let (v4, v6) = survey.families();
        let ports = self.snat_port_count();
        let services = MapFill {
            map: MapName::Services,
            family: None,
            rows: self.services.len(),
            transient: 0,
            capacity: maps.service_capacity() as usize,
        };
        let mut fills = vec![services];
        fills.extend(self.v4.fills(maps.v4(), v4, survey.now_ns));
        fills.extend(self.v6.fills(maps.v6(), v6, survey.now_ns));
        let mut snat: Vec<_> = snat_ports(v4, ports).chain(snat_ports(v6, ports)).collect();
        snat.sort_unstable_by_key(|use_of| (use_of.address, use_of.proto));
        let reduced_tables = self.v4.reduced_tables() + self.v6.reduced_tables();
        let slots_for_tables = self.v4.slots_for_tables().max(self.v6.slots_for_tables());
        Pressure { maps: fills, snat, reduced_tables, slots_for_tables, lacking: self.lacking() }
    }
}

impl<A: MapAddr> FamilyTable<A> {
    fn fills(
        &self,
        maps: &impl FamilyMaps<A>,
        flows: &Flows<A>,
        now_ns: u64,
    ) -> impl Iterator<Item = MapFill> {
        let rows = [
            (MapName::Frontends, self.frontends.len()),
            (MapName::Backends, self.backends.len()),
            (MapName::Slots, self.ranges.used() as usize),
            (MapName::SourceRanges, self.source_range_count()),
            (MapName::Conntrack, flows.conntrack),
            (MapName::Affinity, self.sticking(&flows.clients, now_ns)),
            (MapName::Opened, flows.counts.len()),
        ];
        let transient = flows.transient;
        rows.map(|(map, rows)| MapFill {
            map,
            family: Some(A::FAMILY),
            rows,
            transient: if map == MapName::Conntrack { transient } else { 0 },
            capacity: maps.capacity(map) as usize,
        })
        .into_iter()
    }
}

impl<A: MapAddr> FamilyTable<A> {
    /// The clients whose next connection goes where the last one went, unless that backend is gone.
    fn sticking(&self, clients: &Clients, now_ns: u64) -> usize {
        let of_port = |(service, last): (&u32, &Vec<u64>)| {
            let limit_ns = u64::from(self.affinity_secs(*service)) * 1_000_000_000;
            let sticks = |last_used: &&u64| limit_ns > 0 && now_ns.saturating_sub(**last_used) <= limit_ns;
            last.iter().filter(sticks).count()
        };
        clients.iter().map(of_port).sum()
    }

    /// For how long clients of a service port stick; 0 if they do not.
    fn affinity_secs(&self, service: u32) -> u32 {
        let keys = self.keys.get(&service).into_iter().flatten();
        let values = keys.filter_map(|key| Some(self.frontends.get(key)?.value));
        values.filter(|value| value.service == service).map(|value| value.affinity_secs).max().unwrap_or(0)
    }
}

fn snat_ports<A: MapAddr>(flows: &Flows<A>, capacity: usize) -> impl Iterator<Item = SnatPorts> {
    flows.snat.iter().filter_map(move |((address, proto), backends)| {
        // Of equals always the same one, or it would seem to change.
        let ((backend, port), fullest) =
            backends.iter().max_by_key(|(backend, count)| (**count, std::cmp::Reverse(**backend)))?;
        Some(SnatPorts {
            address: (*address).into(),
            proto: *proto,
            in_use: backends.values().sum(),
            backend: SocketAddr::new((*backend).into(), *port),
            fullest: *fullest,
            capacity,
        })
    })
}

//! What the tests of this folder share: plans in a line of text, and a check that maps
//! hold together.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::SocketAddr,
};

use ipnet::IpNet;
use proxy_common::maps::{
    backends::flags,
    frontends::{self, ClientRule, Frontend, FrontendKey, Kind},
    slots::SlotRange,
    source_ranges::SERVICE_BITS,
};

use super::{MapAddr, MemoryFamily, MemoryMaps, encode};
use crate::{
    model::{Family, ObjectName, Protocol, ServicePortName},
    plan::{BackendRow, ClientRules, FrontendRow, PortPlan, Scope, Spread, maglev::Use},
};

pub(super) fn name(name: &str) -> ObjectName {
    ObjectName::new("ns", name)
}

fn backends(numbers: &[u8], family: Family) -> Box<[BackendRow]> {
    let row = |number: &u8| {
        let addr: SocketAddr = match family {
            Family::V4 => ([10, 0, 0, *number], 8080).into(),
            Family::V6 => ([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(*number)], 8080).into(),
        };
        BackendRow { addr, local: number % 2 == 1, weight: 1 }
    };
    numbers.iter().map(row).collect()
}

fn even(backends: Box<[BackendRow]>) -> Scope {
    Scope { backends, spread: Spread::Even }
}

/// One UDP port on 172.30.0.`address`:53 and its address, with these backends; odd ones
/// are local, even ones open a source range. Without backends it still answers, by refusing.
pub(super) fn plan(service: &str, family: Family, address: u8, numbers: &[u8]) -> PortPlan {
    let addr = match family {
        Family::V4 => [172, 30, 0, address].into(),
        Family::V6 => [0xfd00, 1, 0, 0, 0, 0, 0, u16::from(address)].into(),
    };
    let source_ranges = ranges(numbers, family);
    let row = |kind, port, proto, rule| FrontendRow {
        addr: Some(addr),
        port,
        proto,
        kind,
        rules: ClientRules::all(ClientRule(rule)),
        source_ranges: kind != Kind::ADDRESS && !source_ranges.is_empty(),
        hashed: false,
    };
    let local: Vec<_> = numbers.iter().copied().filter(|number| number % 2 == 1).collect();
    let frontends = [row(Kind::ADDRESS, 0, 0, 0), row(Kind::CLUSTER_IP, 53, 17, ClientRule::SNAT)];
    PortPlan {
        name: ServicePortName { service: name(service), port: "dns".into() },
        family,
        protocol: Protocol::Udp,
        affinity_secs: 0,
        cluster: even(backends(numbers, family)),
        local: even(backends(&local, family)),
        returning: [].into(),
        lingering: [].into(),
        source_ranges,
        frontends: frontends.into(),
    }
}

fn ranges(numbers: &[u8], family: Family) -> Box<[IpNet]> {
    let net = |number: &u8| {
        let text = match family {
            Family::V4 => format!("10.{number}.0.0/16"),
            Family::V6 => format!("fd00:{number}::/32"),
        };
        text.parse().expect("a range")
    };
    numbers.iter().filter(|number| *number % 2 == 0).map(net).collect()
}

/// As [`plan`], with backends that linger.
pub(super) fn lingering(mut plan: PortPlan, numbers: &[u8]) -> PortPlan {
    plan.lingering = backends(numbers, plan.family);
    plan
}

/// As [`plan`], with lookup tables.
pub(super) fn hashed(mut plan: PortPlan) -> PortPlan {
    for scope in [&mut plan.cluster, &mut plan.local] {
        scope.spread = Spread::Table(Use::Hash);
    }
    plan.frontends.iter_mut().filter(|row| row.port != 0).for_each(|row| row.hashed = true);
    plan
}

/// What packets would experience, without any number that only the maps know.
pub(super) type Meaning = BTreeMap<String, Leads>;

/// Where a frontend leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leads {
    pub(super) service: String,
    pub(super) rules: u32,
    pub(super) cluster: Vec<BackendRow>,
    pub(super) local: Vec<BackendRow>,
    pub(super) source_ranges: BTreeSet<String>,
}

/// Resolves every row, failing when one names something that is not there.
pub(super) fn meaning(maps: &MemoryMaps) -> Meaning {
    let mut meaning = Meaning::new();
    read(maps, &maps.v4, &mut meaning);
    read(maps, &maps.v6, &mut meaning);
    meaning
}

fn frontend_name<A: MapAddr>(key: &FrontendKey<A>) -> String {
    format!("{}:{}/{}", key.addr.into(), key.port, key.proto)
}

fn read<A: MapAddr>(maps: &MemoryMaps, family: &MemoryFamily<A>, meaning: &mut Meaning) {
    for (key, value) in &family.frontends {
        let service =
            maps.services.get(&value.service).expect("a frontend names a service row").name().to_owned();
        let restricted = value.flags & frontends::flags::SOURCE_RANGES != 0;
        let own = family.source_ranges.keys().filter(|row| restricted && row.service == value.service);
        let source_ranges =
            own.map(|row| format!("{}/{}", row.addr.into(), row.bits - SERVICE_BITS)).collect();
        let (cluster, local) = (resolve(family, value.cluster), resolve(family, value.local));
        let leads = Leads { service, rules: value.rules, cluster, local, source_ranges };
        meaning.insert(frontend_name(key), leads);
    }
}

fn resolve<A: MapAddr>(family: &MemoryFamily<A>, range: SlotRange) -> Vec<BackendRow> {
    let slots = &family.slots[range.offset as usize..(range.offset + range.len) as usize];
    let row = |id: &u32| {
        let row = family.backends[*id as usize];
        assert!(row.flags & flags::PRESENT != 0, "slot names backend {id}, which is not there");
        let local = row.flags & flags::LOCAL != 0;
        BackendRow { addr: SocketAddr::new(row.addr.into(), row.port), local, weight: 1 }
    };
    let mut rows: Vec<_> = slots.iter().map(row).collect();
    // A table names its backends many times.
    if rows.iter().collect::<BTreeSet<_>>().len() < rows.len() {
        rows.sort_unstable();
        rows.dedup();
    }
    rows
}

/// What packets should experience by these plans.
pub(super) fn wanted(plans: &[PortPlan]) -> Meaning {
    let mut meaning = Meaning::new();
    for plan in plans {
        for row in &plan.frontends {
            let addr = row.addr.expect("tests use addresses");
            let leads = encode::leads_to_backends(row);
            let rows = |list: &[BackendRow]| if leads { list.to_vec() } else { Vec::new() };
            let restricted = plan.source_ranges.iter().filter(|_| row.source_ranges);
            let leads = Leads {
                service: plan.name.to_string(),
                rules: row.rules.pack(),
                cluster: rows(&plan.cluster.backends),
                local: rows(&plan.local.backends),
                source_ranges: restricted.map(IpNet::to_string).collect(),
            };
            meaning.insert(format!("{addr}:{}/{}", row.port, row.proto), leads);
        }
    }
    meaning
}

/// Backend rows that no frontend leads to, service rows and source ranges without a frontend.
pub(super) fn leftovers(maps: &MemoryMaps) -> usize {
    let named: HashSet<u32> = services(&maps.v4).chain(services(&maps.v6)).collect();
    let services = maps.services.keys().filter(|id| !named.contains(id)).count();
    let ranges = maps.v4.source_ranges.keys().map(|row| row.service);
    let ranges = ranges.chain(maps.v6.source_ranges.keys().map(|row| row.service));
    services + ranges.filter(|id| !named.contains(id)).count() + unused(&maps.v4) + unused(&maps.v6)
}

fn services<A: MapAddr>(family: &MemoryFamily<A>) -> impl Iterator<Item = u32> {
    family.frontends.values().map(|value| value.service)
}

fn unused<A: MapAddr>(family: &MemoryFamily<A>) -> usize {
    let slots = |range: SlotRange| &family.slots[range.offset as usize..(range.offset + range.len) as usize];
    let used: BTreeSet<u32> =
        family.frontends.values().flat_map(|v| [slots(v.cluster), slots(v.local)].concat()).collect();
    let present = family.backends.iter().enumerate().filter(|(_, row)| row.flags & flags::PRESENT != 0);
    present.filter(|(id, _)| !used.contains(&(*id as u32))).count()
}

/// The frontend of 172.30.0.`address`:53.
pub(super) fn frontend(maps: &MemoryMaps, address: u8) -> Option<Frontend> {
    let key = FrontendKey { addr: [172, 30, 0, address].into(), port: 53, proto: 17, pad: 0 };
    maps.v4.frontends.get(&key).copied()
}

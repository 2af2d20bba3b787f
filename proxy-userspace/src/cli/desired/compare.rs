//! Two states of the maps, compared by what they mean: ids of services, and where in the array
//! slots lie, may differ.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use proxy_common::{
    maps::{
        backends::{Backend, flags as backend_flags},
        frontends::{ClientClass, Frontend, FrontendKey, Kind, flags},
        service_cidrs::Prefix,
        services::ServiceRow,
        settings::Settings,
        slots::SlotRange,
        source_ranges::{SERVICE_BITS, SourceRange},
    },
    proto,
};
use serde::Serialize;

use crate::{
    cli::{
        list::service::{row_name, rule_words},
        rows::socket,
    },
    dataplane::{MapAddr, MemoryFamily, MemoryMaps},
};

/// Stands for the name of a service where rows belong to the node.
pub const NODE: &str = "(node)";

/// A row that differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// Namespace, name and port name of the service; `(node)` for rows of the node.
    pub service: String,
    /// The map, without its family.
    pub map: &'static str,
    /// The row, as people would name it.
    pub row: String,
    /// What is with it.
    pub kind: Change,
    /// What of it differs.
    pub details: Vec<String>,
}

/// What becomes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// Only the second state has it.
    Missing,
    /// Only the first state has it.
    Extra,
    /// Both have it, with other content.
    Different,
}

impl Change {
    /// The word for a state that is not as it should be.
    pub fn name(self) -> &'static str {
        match self {
            Change::Missing => "missing",
            Change::Extra => "extra",
            Change::Different => "different",
        }
    }
}

/// What of `is` is not as in `should`.
pub fn differences(is: &MemoryMaps, should: &MemoryMaps) -> Vec<Difference> {
    let mut found = names(&is.services, &should.services);
    found.extend(settings(&is.settings, &should.settings));
    found.extend(family(&Side::of(&is.v4, &is.services), &Side::of(&should.v4, &should.services)));
    found.extend(family(&Side::of(&is.v6, &is.services), &Side::of(&should.v6, &should.services)));
    found.sort();
    found
}

/// One family of one state.
struct Side<'a, A> {
    maps: &'a MemoryFamily<A>,
    services: &'a BTreeMap<u32, ServiceRow>,
}

impl<'a, A: MapAddr> Side<'a, A> {
    fn of(maps: &'a MemoryFamily<A>, services: &'a BTreeMap<u32, ServiceRow>) -> Self {
        Self { maps, services }
    }

    fn service(&self, id: u32) -> String {
        self.services.get(&id).map_or_else(|| format!("?({id})"), |row| row.name().to_owned())
    }

    /// Where the slots of a range lead, in their order.
    fn targets(&self, range: SlotRange) -> Vec<String> {
        let (start, len) = (range.offset as usize, range.len as usize);
        let ids = self.maps.slots.iter().skip(start).take(len);
        ids.map(|id| match self.maps.backends.get(*id as usize) {
            Some(row) if row.flags & backend_flags::PRESENT != 0 => target(row),
            _ => format!("no backend (id {id})"),
        })
        .collect()
    }

    /// Service and prefix of each source range.
    fn source_ranges(&self) -> BTreeSet<(String, String)> {
        let range = |row: &SourceRange<A>| {
            let bits = row.bits.saturating_sub(SERVICE_BITS);
            (self.service(row.service), prefix(&Prefix { bits, addr: row.addr }))
        };
        self.maps.source_ranges.keys().map(range).collect()
    }
}

fn target<A: MapAddr>(row: &Backend<A>) -> String {
    let local = if row.flags & backend_flags::LOCAL != 0 { " on this node" } else { "" };
    format!("{}{local}", socket(row.addr, row.port))
}

fn prefix<A: MapAddr>(prefix: &Prefix<A>) -> String {
    let addr: IpAddr = prefix.addr.into();
    format!("{addr}/{}", prefix.bits)
}

fn named<A: MapAddr>(key: &FrontendKey<A>) -> String {
    row_name(key.addr.into(), key.port, proto::name(key.proto).unwrap_or("any"))
}

/// Names that frontends do not show: of ids that lead nowhere.
fn names(is: &BTreeMap<u32, ServiceRow>, should: &BTreeMap<u32, ServiceRow>) -> Vec<Difference> {
    let text = |row: &ServiceRow| (row.name().to_owned(), proto::name(row.proto).unwrap_or("any"));
    let (is, should): (BTreeSet<_>, BTreeSet<_>) =
        (is.values().map(text).collect(), should.values().map(text).collect());
    let row = |(name, protocol): &(String, &str), kind| Difference {
        service: name.clone(),
        map: "services",
        row: format!("{name}/{protocol}"),
        kind,
        details: Vec::new(),
    };
    let missing = should.difference(&is).map(|name| row(name, Change::Missing));
    missing.chain(is.difference(&should).map(|name| row(name, Change::Extra))).collect()
}

fn settings(is: &Settings, should: &Settings) -> Option<Difference> {
    // A node keeps the secret that it has.
    let should = &Settings { secret: is.secret, ..*should };
    let (left, right) = (fields(is), fields(should));
    let details: Vec<_> = left.into_iter().zip(right).filter_map(|(a, b)| instead(a.0, &a.1, &b.1)).collect();
    (is != should).then(|| node("settings", "settings".into(), Change::Different, details))
}

fn fields(settings: &Settings) -> [(&'static str, String); 7] {
    let range = |addr: IpAddr, bits| format!("{addr}/{bits}");
    let last = u32::from(settings.snat_port_first) + u32::from(settings.snat_port_count).saturating_sub(1);
    [
        ("cookie of the host's network namespace", settings.host_netns_cookie.to_string()),
        ("flags", format!("{:#x}", settings.flags)),
        ("source ports", format!("{}-{last}", settings.snat_port_first)),
        ("IPv4 pods", range(settings.pod_cidr_v4.into(), settings.pod_cidr_bits_v4)),
        ("IPv6 pods", range(settings.pod_cidr_v6.into(), settings.pod_cidr_bits_v6)),
        ("IPv4 services", range(settings.service_range_v4.into(), settings.service_range_bits_v4)),
        ("IPv6 services", range(settings.service_range_v6.into(), settings.service_range_bits_v6)),
    ]
}

/// What to say of something that differs.
fn instead(what: &str, is: &str, should: &str) -> Option<String> {
    (is != should).then(|| format!("{what}: {} instead of {}", or_none(is), or_none(should)))
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

fn node(map: &'static str, row: String, kind: Change, details: Vec<String>) -> Difference {
    Difference { service: NODE.into(), map, row, kind, details }
}

fn family<A: MapAddr>(is: &Side<'_, A>, should: &Side<'_, A>) -> Vec<Difference> {
    let mut found = frontends(is, should);
    found.extend(leftovers(is, should));
    found.extend(ranges(is, should));
    found.extend(addresses(is, should));
    found.extend(cidrs(is, should));
    found
}

fn frontends<A: MapAddr>(is: &Side<'_, A>, should: &Side<'_, A>) -> Vec<Difference> {
    let keys: BTreeSet<_> = is.maps.frontends.keys().chain(should.maps.frontends.keys()).collect();
    let compare = |key: &FrontendKey<A>| {
        let (left, right) = (is.maps.frontends.get(key), should.maps.frontends.get(key));
        let (kind, details) = match (left, right) {
            (Some(left), Some(right)) => (Change::Different, frontend(is, left, should, right)),
            (None, _) => (Change::Missing, Vec::new()),
            (_, None) => (Change::Extra, Vec::new()),
        };
        let service = right.map(|row| should.service(row.service));
        let row = right.or(left)?;
        (kind != Change::Different || !details.is_empty()).then(|| Difference {
            service: service.unwrap_or_else(|| is.service(row.service)),
            map: "frontends",
            row: named(key),
            kind,
            details,
        })
    };
    keys.into_iter().filter_map(compare).collect()
}

fn frontend<A: MapAddr>(
    is: &Side<'_, A>,
    left: &Frontend,
    should: &Side<'_, A>,
    right: &Frontend,
) -> Vec<String> {
    let mut details = Vec::new();
    details.extend(instead("service", &is.service(left.service), &should.service(right.service)));
    details.extend(instead("kind", Kind(left.kind).name(), Kind(right.kind).name()));
    for (class, name) in
        [(ClientClass::Pod, "pods"), (ClientClass::Node, "this node"), (ClientClass::External, "outside")]
    {
        let words = |row: &Frontend| rule_words(row.rules, class).join(",");
        details.extend(instead(&format!("rules for clients: {name}"), &words(left), &words(right)));
    }
    let seconds = |row: &Frontend| format!("{} s", row.affinity_secs);
    details.extend(instead("affinity", &seconds(left), &seconds(right)));
    for (bit, name) in [(flags::SOURCE_RANGES, "source ranges"), (flags::MAGLEV, "hashing")] {
        let word = |row: &Frontend| if row.flags & bit == 0 { "off" } else { "on" };
        details.extend(instead(name, word(left), word(right)));
    }
    details.extend(slots("", &is.targets(left.cluster), &should.targets(right.cluster)));
    details.extend(slots("local ", &is.targets(left.local), &should.targets(right.local)));
    details
}

/// Backends that are missing or too many; where there are none, the slots may have another order.
fn slots(scope: &str, is: &[String], should: &[String]) -> Vec<String> {
    let (left, right): (BTreeSet<_>, BTreeSet<_>) = (is.iter().collect(), should.iter().collect());
    let missing = right.difference(&left).map(|name| format!("{scope}backend {name} is missing"));
    let extra = left.difference(&right).map(|name| format!("{scope}backend {name} is too many"));
    let details: Vec<_> = missing.chain(extra).collect();
    if details.is_empty() && is != should {
        return vec![format!("{scope}slots have another order or other shares")];
    }
    details
}

/// Backends that nothing leads to and that nobody wants.
fn leftovers<A: MapAddr>(is: &Side<'_, A>, should: &Side<'_, A>) -> Vec<Difference> {
    let rows = |side: &Side<'_, A>| -> HashMap<Backend<A>, usize> {
        let present = side.maps.backends.iter().enumerate();
        present
            .filter(|(_, row)| row.flags & backend_flags::PRESENT != 0)
            .map(|(id, row)| (*row, id))
            .collect()
    };
    let wanted = rows(should);
    let extra = rows(is).into_iter().filter(|(row, _)| !wanted.contains_key(row));
    extra
        .map(|(row, id)| node("backends", format!("{} (id {id})", target(&row)), Change::Extra, Vec::new()))
        .collect()
}

fn ranges<A: MapAddr>(is: &Side<'_, A>, should: &Side<'_, A>) -> Vec<Difference> {
    let (left, right) = (is.source_ranges(), should.source_ranges());
    let row = |(service, range): &(String, String), kind| Difference {
        service: service.clone(),
        map: "source_ranges",
        row: range.clone(),
        kind,
        details: Vec::new(),
    };
    let missing = right.difference(&left).map(|range| row(range, Change::Missing));
    missing.chain(left.difference(&right).map(|range| row(range, Change::Extra))).collect()
}

fn addresses<A: MapAddr>(is: &Side<'_, A>, should: &Side<'_, A>) -> Vec<Difference> {
    let (left, right) = (&is.maps.node_addresses, &should.maps.node_addresses);
    let word = |flags: &u32| if *flags == 0 { "takes no NodePorts" } else { "takes NodePorts" };
    let all: BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let compare = |addr: &A| {
        let (kind, details) = match (left.get(addr), right.get(addr)) {
            (Some(a), Some(b)) if a == b => return None,
            (Some(a), Some(b)) => (Change::Different, vec![format!("{} instead of {}", word(a), word(b))]),
            (None, _) => (Change::Missing, Vec::new()),
            (_, None) => (Change::Extra, Vec::new()),
        };
        let addr: IpAddr = (*addr).into();
        Some(node("node_addresses", addr.to_string(), kind, details))
    };
    all.into_iter().filter_map(compare).collect()
}

fn cidrs<A: MapAddr>(is: &Side<'_, A>, should: &Side<'_, A>) -> Vec<Difference> {
    let texts =
        |side: &Side<'_, A>| -> BTreeSet<String> { side.maps.service_cidrs.iter().map(prefix).collect() };
    let (left, right) = (texts(is), texts(should));
    let row = |range: &String, kind| node("service_cidrs", range.clone(), kind, Vec::new());
    let missing = right.difference(&left).map(|range| row(range, Change::Missing));
    missing.chain(left.difference(&right).map(|range| row(range, Change::Extra))).collect()
}

#[cfg(test)]
mod tests;

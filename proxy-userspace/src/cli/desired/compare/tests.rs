//! States of the maps that differ in one thing each.

use proxy_common::{
    addr::Ip4,
    maps::{node_addresses::flags::NODE_PORTS, source_ranges::SourceRange},
};

use super::*;

const VIP: Ip4 = Ip4 { octets: [10, 96, 0, 1] };
const NODE_ADDRESS: Ip4 = Ip4 { octets: [192, 168, 0, 2] };

fn backend(last: u8) -> Backend<Ip4> {
    let addr = Ip4 { octets: [10, 0, 0, last] };
    Backend { addr, port: 8080, proto: proto::TCP, flags: backend_flags::PRESENT }
}

fn key() -> FrontendKey<Ip4> {
    FrontendKey { addr: VIP, port: 80, proto: proto::TCP, pad: 0 }
}

/// One service with two backends; its id is `id`, and its slots begin at `offset`.
fn maps(id: u32, offset: u32) -> MemoryMaps {
    let mut maps = MemoryMaps::new(16);
    maps.services.insert(id, ServiceRow::new("shop/web:http", proto::TCP).unwrap());
    let cluster = SlotRange { offset, len: 2 };
    maps.v4
        .frontends
        .insert(key(), Frontend { service: id, kind: Kind::CLUSTER_IP.0, cluster, ..Frontend::default() });
    (maps.v4.backends[3], maps.v4.backends[4]) = (backend(3), backend(4));
    maps.v4.slots[offset as usize..offset as usize + 2].copy_from_slice(&[3, 4]);
    maps.v4.node_addresses.insert(NODE_ADDRESS, NODE_PORTS);
    maps
}

/// What a change to the maps makes of them: `service map row kind: details`.
fn check(change: impl Fn(&mut MemoryMaps), expected: &[&str]) {
    let mut changed = maps(1, 2);
    change(&mut changed);
    let shown = differences(&changed, &maps(1, 2))
        .into_iter()
        .map(|d| format!("{} {} {} {}: {}", d.service, d.map, d.row, d.kind.name(), d.details.join("; ")));
    assert_eq!(shown.collect::<Vec<_>>(), expected);
}

#[test]
fn ids_and_offsets_mean_nothing() {
    assert_eq!(differences(&maps(1, 2), &maps(7, 9)), []);
}

#[test]
fn frontends_that_differ() {
    let row = |maps: &mut MemoryMaps| *maps.v4.frontends.get(&key()).unwrap();
    check(
        |maps| {
            maps.v4.frontends.remove(&key());
        },
        &["shop/web:http frontends 10.96.0.1:80/TCP missing: "],
    );
    check(
        |maps| {
            let other = FrontendKey { addr: Ip4::default(), port: 30080, ..key() };
            let row = row(maps);
            maps.v4.frontends.insert(other, row);
        },
        &["shop/web:http frontends 0.0.0.0:30080/TCP extra: "],
    );
    check(
        |maps| {
            let row = Frontend { rules: 2 << 16, affinity_secs: 9, flags: flags::MAGLEV, ..row(maps) };
            maps.v4.frontends.insert(key(), row);
        },
        &[
            "shop/web:http frontends 10.96.0.1:80/TCP different: rules for clients: outside: snat instead of none; \
           affinity: 9 s instead of 0 s; hashing: on instead of off",
        ],
    );
}

#[test]
fn backends_that_differ() {
    check(
        |maps| maps.v4.backends[4] = backend(9),
        &[
            "(node) backends 10.0.0.9:8080 (id 4) extra: ",
            "shop/web:http frontends 10.96.0.1:80/TCP different: backend 10.0.0.4:8080 is missing; \
             backend 10.0.0.9:8080 is too many",
        ],
    );
    check(
        |maps| maps.v4.backends[4] = Backend::default(),
        &["shop/web:http frontends 10.96.0.1:80/TCP different: backend 10.0.0.4:8080 is missing; \
           backend no backend (id 4) is too many"],
    );
    check(
        |maps| maps.v4.slots.swap(2, 3),
        &["shop/web:http frontends 10.96.0.1:80/TCP different: slots have another order or other shares"],
    );
    check(|maps| maps.v4.backends[5] = backend(5), &["(node) backends 10.0.0.5:8080 (id 5) extra: "]);
}

#[test]
fn rows_of_the_node_that_differ() {
    check(
        |maps| {
            maps.v4.node_addresses.insert(NODE_ADDRESS, 0);
        },
        &["(node) node_addresses 192.168.0.2 different: takes no NodePorts instead of takes NodePorts"],
    );
    check(
        |maps| maps.settings.snat_port_count = 9,
        &["(node) settings settings different: source ports: 0-8 instead of 0-0"],
    );
    check(
        |maps| maps.v4.service_cidrs.push(Prefix { bits: 16, addr: VIP }),
        &["(node) service_cidrs 10.96.0.1/16 extra: "],
    );
    check(
        |maps| {
            maps.v4.source_ranges.insert(SourceRange { bits: 40, service: 1, addr: VIP }, ());
        },
        &["shop/web:http source_ranges 10.96.0.1/8 extra: "],
    );
    check(
        |maps| {
            maps.services.insert(5, ServiceRow::new("a/b", proto::UDP).unwrap());
        },
        &["a/b services a/b/UDP extra: "],
    );
}

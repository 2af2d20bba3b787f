//! Ports towards a destination that holds nearly all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    time::{Duration, Instant},
};

use aya::maps::{HashMap, Map, MapData};
use proxy_common::{
    Ip4, Ip6,
    maps::{
        held_ports::{HeldPorts, HeldPortsKey},
        settings::Settings,
    },
};
use proxy_userspace::{dataplane::MapStore as _, kernel::KernelAddr};

use super::{bench, client, close, is_refused, open, port};
use crate::{
    bench::{BACKEND_PORT, Bench, Plan, SHOT, plans, v4_of, v6_of},
    connection::{Connection, forget},
    frames::{Flow, SYN, frame},
};

/// Two whole words of hints, and one of two ports.
const COUNT: u16 = 130;

fn fill(bench: &mut Bench, plan: &Plan, first: u16) -> BTreeMap<u16, Connection> {
    let connections = (0..COUNT).map(|number| open(bench, plan, first + number));
    connections.map(|connection| (port(&connection), connection)).collect()
}

/// The client sends its SYN until it gets through.
fn opens_at_last(bench: &mut Bench, plan: &Plan, number: u16) -> Connection {
    let flow = client(plan, Flow::tcp, number);
    let inside = bench.enters(flow, SYN);
    let deadline = Instant::now() + Duration::from_secs(10);
    while bench.egress(&frame(inside, SYN)).action == SHOT {
        assert!(Instant::now() < deadline, "there is a port");
    }
    open(bench, plan, number)
}

fn hints<A: KernelAddr>(bench: &Bench, name: &str) -> HashMap<MapData, HeldPortsKey<A>, HeldPorts> {
    let data = MapData::from_pin(bench.pins.map(name)).expect("the map");
    HashMap::try_from(Map::from_map_data(data).expect("a map")).expect("of this type")
}

/// The ports that are said to be held of `node`, as far as it masquerades.
fn said<A: KernelAddr + Debug>(bench: &Bench, name: &str, (node, backend): (A, A)) -> BTreeSet<u16> {
    let Settings { snat_port_first, .. } = bench.maps.settings().expect("settings");
    let mut said = BTreeSet::new();
    for row in hints::<A>(bench, name).iter() {
        let (key, row) = row.expect("a row");
        assert_eq!((key.src, key.dst, key.dport), (node, backend, BACKEND_PORT));
        let bits = (0..64).filter(|bit| row.held & (1 << bit) != 0);
        said.extend(bits.map(|bit| snat_port_first + key.word * 64 + bit));
    }
    said
}

#[test]
fn each_is_had_and_those_held_are_remembered() {
    let mut bench = bench(COUNT);
    for plan in plans() {
        let connections = fill(&mut bench, &plan, 0);
        assert_eq!(connections.len(), usize::from(COUNT), "each has its own");
        is_refused(&mut bench, client(&plan, Flow::tcp, 999));
        let said = if plan.node.is_ipv4() {
            said(&bench, "held_ports_v4", (v4_of(plan.node), v4_of(plan.backend)))
        } else {
            said(&bench, "held_ports_v6", (v6_of(plan.node), v6_of(plan.backend)))
        };
        assert!(said.len() > 64, "{}", said.len());
        assert!(said.iter().all(|port| connections.contains_key(port)), "{said:?}");
        forget(&mut bench, |_| true);
    }
}

/// What is remembered may have changed since.
#[test]
fn what_is_wrongly_remembered_costs_no_connection() {
    let mut bench = bench(COUNT);
    for plan in plans() {
        let connections = fill(&mut bench, &plan, 0);
        is_refused(&mut bench, client(&plan, Flow::tcp, 999));
        for (number, (at, connection)) in (500..).zip(connections.iter().take(3)) {
            close(&mut bench, connection);
            assert_eq!(port(&opens_at_last(&mut bench, &plan, number)), *at);
        }
        forget(&mut bench, |_| true);
        all_are_held::<Ip4>(&bench, "held_ports_v4");
        all_are_held::<Ip6>(&bench, "held_ports_v6");
        assert_eq!(fill(&mut bench, &plan, 200).len(), usize::from(COUNT), "each has its own");
        forget(&mut bench, |_| true);
    }
}

fn all_are_held<A: KernelAddr>(bench: &Bench, name: &str) {
    let mut map = hints::<A>(bench, name);
    let keys: Vec<_> = map.keys().collect::<Result<_, _>>().expect("keys");
    for key in keys {
        let row = map.get(&key, 0).expect("it is there");
        map.insert(key, HeldPorts { held: u64::MAX, ..row }, 0).expect("it stays there");
    }
}

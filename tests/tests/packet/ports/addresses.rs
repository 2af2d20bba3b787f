//! Several addresses behind which connections are masqueraded.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use proxy_common::maps::devices::Device;
use proxy_userspace::dataplane::{FamilyMaps as _, MapStore as _};

use super::{bench, client, close, is_refused, open, with_ports};
use crate::{
    bench::{Bench, NODE_PORT, Plan, plans, v4_of, v6_of},
    connection::{Connection, change, forget, pass},
    frames::{ACK, Flow, SYN, checked, frame},
    uplink::{MAC, on_a_node},
};

/// Test runs pass this device.
const DEVICE: u32 = 1;
/// Of each address.
const PORTS: u16 = 5;

fn addresses(plan: &Plan, count: u8) -> Vec<IpAddr> {
    let nth = |n| match plan.node {
        IpAddr::V4(addr) => IpAddr::from((addr.to_bits() + u32::from(n)).to_be_bytes()),
        IpAddr::V6(addr) => IpAddr::from((addr.to_bits() + u128::from(n)).to_be_bytes()),
    };
    (0..count).map(nth).collect()
}

fn with_addresses(bench: &mut Bench, count: u8) {
    with_addresses_of(bench, count, DEVICE, Device::default());
}

fn with_addresses_of(bench: &mut Bench, count: u8, ifindex: u32, mut device: Device) {
    let [v4, v6] = plans();
    for addr in addresses(&v4, count) {
        device.add_snat(v4_of(addr));
        if addr != v4.node {
            bench.maps.v4().put_node_addresses(&[(v4_of(addr), 0)]).expect("it is the node's");
        }
    }
    for addr in addresses(&v6, count) {
        device.add_snat(v6_of(addr));
        if addr != v6.node {
            bench.maps.v6().put_node_addresses(&[(v6_of(addr), 0)]).expect("it is the node's");
        }
    }
    bench.maps.replace_devices(&[(ifindex, device)]).expect("devices");
}

/// The source that the backend sees.
fn source(connection: &Connection) -> (IpAddr, u16) {
    connection.forward[1].2.src
}

#[test]
fn each_has_all_ports() {
    const COUNT: u8 = 3;
    let mut bench = bench(PORTS);
    with_addresses(&mut bench, COUNT);
    for plan in plans() {
        let last = u16::from(COUNT) * PORTS;
        let mut open_ones: BTreeMap<_, _> = (0..last)
            .map(|number| open(&mut bench, &plan, number))
            .map(|connection| (source(&connection), connection))
            .collect();
        let sources: BTreeSet<_> = open_ones.keys().copied().collect();
        let range = bench.maps.settings().expect("settings").snat_port_first;
        let all = addresses(&plan, COUNT).into_iter();
        let all = all.flat_map(|addr| (range..range + PORTS).map(move |port| (addr, port)));
        assert_eq!(sources, all.collect());
        is_refused(&mut bench, client(&plan, Flow::tcp, 999));
        // One that gives way is had with its address.
        for (number, source_of_closed) in (100..).zip(sources.into_iter().step_by(4)) {
            close(&mut bench, &open_ones[&source_of_closed]);
            let next = open(&mut bench, &plan, number);
            assert_eq!(source(&next), source_of_closed);
            open_ones.insert(source_of_closed, next);
        }
        for connection in open_ones.values() {
            pass(&mut bench, &connection.forward, ACK, "it goes on");
            pass(&mut bench, &connection.back, ACK, "and its answers");
        }
        forget(&mut bench, |_| true);
    }
}

#[test]
fn a_client_keeps_to_one_while_it_has_ports() {
    let mut bench = bench(1000);
    with_addresses(&mut bench, 8);
    for plan in plans() {
        let mut all = BTreeSet::new();
        for neighbour in 0..64 {
            let addr = match plan.outside {
                IpAddr::V4(addr) => IpAddr::from((addr.to_bits() + neighbour).to_be_bytes()),
                IpAddr::V6(addr) => IpAddr::from((addr.to_bits() + u128::from(neighbour)).to_be_bytes()),
            };
            let open = |port| {
                let flow = Flow::tcp((addr, port), (plan.node, NODE_PORT));
                source(&Connection::open_masqueraded(&mut bench, flow)).0
            };
            let own: BTreeSet<_> = (40000..40003).map(open).collect();
            assert_eq!(own.len(), 1, "{addr}");
            all.extend(own);
        }
        assert_eq!(all, addresses(&plan, 8).into_iter().collect(), "clients are spread over all");
        forget(&mut bench, |_| true);
    }
}

#[test]
fn the_driver_and_processes_of_the_host_have_them_too() {
    on_a_node(|node| {
        with_ports(&mut node.bench, PORTS);
        let device = Device { mac: MAC, ..Device::default() };
        with_addresses_of(&mut node.bench, 2, node.uplink.ifindex, device);
        for plan in plans() {
            let mut wires = BTreeSet::new();
            for number in 0..2 * PORTS {
                // Both have ports of the same backend.
                let is_of_host = number % 2 == 1;
                let flow = match is_of_host {
                    true => Flow::tcp((plan.node, 50000 + number), (plan.cluster_ip, 80)),
                    false => client(&plan, Flow::tcp, number),
                };
                let wire = match is_of_host {
                    true => checked(&node.bench.egress_of_host(&frame(flow, SYN)).packet),
                    false => checked(&node.xdp(&frame(flow, SYN))?.packet),
                };
                for flags in [SYN | ACK, ACK] {
                    let reply = frame(wire.reversed(), flags);
                    let packet = match is_of_host {
                        true => node.bench.ingress(&reply).packet,
                        false => node.xdp(&reply)?.packet,
                    };
                    assert_eq!(checked(&packet), flow.reversed());
                }
                wires.insert((wire.dst, wire.src));
            }
            assert_eq!(wires.len(), usize::from(2 * PORTS), "{wires:?}");
            let sources: BTreeSet<_> = wires.into_iter().map(|(_, (addr, _))| addr).collect();
            assert_eq!(sources, addresses(&plan, 2).into_iter().collect());
            forget(&mut node.bench, |_| true);
        }
        Ok(())
    })
    .expect("a node");
}

/// Addresses of a node change while connections are open.
#[test]
fn connections_keep_theirs_when_it_is_no_longer_configured() {
    let mut bench = bench(PORTS);
    with_addresses(&mut bench, 2);
    for plan in plans() {
        let open_ones: Vec<_> = (0..2 * PORTS).map(|number| open(&mut bench, &plan, number)).collect();
        with_addresses(&mut bench, 1);
        for _ in 0..2 {
            for connection in &open_ones {
                pass(&mut bench, &connection.forward, ACK, "it goes on");
                pass(&mut bench, &connection.back, ACK, "and its answers");
            }
            // The next packet has the other rows looked at.
            change(&mut bench, |_, _, ticks| *ticks = ticks.wrapping_sub(1));
        }
        is_refused(&mut bench, client(&plan, Flow::tcp, 999));
        with_addresses(&mut bench, 2);
        forget(&mut bench, |_| true);
    }
}

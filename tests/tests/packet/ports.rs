//! Source ports that connections hold no longer, and which of them is had again.

mod addresses;
mod dense;
mod race;

use std::collections::BTreeSet;

use proxy_common::{
    DropReason,
    maps::{
        conntrack::{Role, flags::LASTING},
        counters::{CounterKey, Traffic},
        settings::{Settings, flags::HANDOVER},
    },
};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore as _},
    kernel::KernelAddr,
};

use crate::{
    bench::{BACKEND_ID, Bench, NODE_PORT, Plan, SHOT, plans},
    connection::{Connection, Hook, NewFlow, Row, TRANSPORTS, change, forget, pass, rows, silence},
    frames::{ACK, FIN, Flow, RST, SYN, checked, frame},
    uplink::on_a_node,
};

/// Programs that have so many source ports.
fn bench(ports: u16) -> Bench {
    let mut bench = Bench::new();
    with_ports(&mut bench, ports);
    bench
}

fn with_ports(bench: &mut Bench, ports: u16) {
    let settings = bench.maps.settings().expect("settings");
    bench.maps.put_settings(&Settings { snat_port_count: ports, ..settings }).expect("settings");
}

/// A client's packets to the node.
fn client(plan: &Plan, new: NewFlow, number: u16) -> Flow {
    new((plan.outside, 40000 + number), (plan.node, NODE_PORT))
}

fn open(bench: &mut Bench, plan: &Plan, number: u16) -> Connection {
    Connection::open_masqueraded(bench, client(plan, Flow::tcp, number))
}

/// The source that the backend sees.
fn port(connection: &Connection) -> u16 {
    connection.forward[1].2.src.1
}

fn close(bench: &mut Bench, connection: &Connection) {
    pass(bench, &connection.forward, FIN | ACK, "the client closes");
    pass(bench, &connection.back, FIN | ACK, "the backend closes");
}

/// Asserts that another client finds no port, which is counted.
fn is_refused(bench: &mut Bench, flow: Flow) {
    let before = bench.drops(DropReason::SnatPortsExhausted);
    let inside = bench.enters(flow, SYN);
    assert_eq!(bench.egress(&frame(inside, SYN)).action, SHOT);
    assert_eq!(bench.drops(DropReason::SnatPortsExhausted), before + 1);
}

#[test]
fn that_of_a_closed_connection_is_had_again_at_once() {
    let mut bench = bench(1);
    for plan in plans() {
        for end in [FIN | ACK, RST] {
            let first = open(&mut bench, &plan, 0);
            pass(&mut bench, &first.forward, end, "the client's end");
            if end != RST {
                is_refused(&mut bench, client(&plan, Flow::tcp, 9));
                pass(&mut bench, &first.back, end, "the backend's end");
            }
            let second = open(&mut bench, &plan, 1);
            assert_eq!(port(&second), port(&first));
            let of_first = |row: &_| first.forward.iter().any(|(_, before, _)| row == before);
            assert!(rows(&mut bench).iter().all(|row| !of_first(&row.from)), "all of its rows leave");
            for _ in 0..2 {
                pass(&mut bench, &second.forward, ACK, "the second goes on");
                pass(&mut bench, &second.back, ACK, "and its answer");
            }
            forget(&mut bench, |_| true);
        }
    }
}

#[test]
fn that_of_a_connection_that_is_not_yet_one_is_had_again() {
    let mut bench = bench(1);
    for plan in plans() {
        for is_answered in [false, true] {
            let asked = client(&plan, Flow::tcp, 0);
            let inside = bench.enters(asked, SYN);
            let wire = bench.leaves(inside, SYN);
            if is_answered {
                assert_eq!(bench.enters(wire.reversed(), SYN | ACK), inside.reversed());
            }
            let second = open(&mut bench, &plan, 1);
            assert_eq!(second.forward[1].2, wire);
            is_refused(&mut bench, client(&plan, Flow::tcp, 2));
            forget(&mut bench, |_| true);
        }
    }
}

#[test]
fn that_of_a_datagram_is_had_again_unless_more_have_followed() {
    let mut bench = bench(1);
    for plan in plans() {
        let first = Connection::open_masqueraded(&mut bench, client(&plan, Flow::udp, 0));
        let second = Connection::open_masqueraded(&mut bench, client(&plan, Flow::udp, 1));
        assert_eq!(port(&second), port(&first));
        for role in [Role::SNAT, Role::REV_SNAT] {
            change(&mut bench, |row, flags, _| *flags = if row.role == role { LASTING } else { *flags });
            is_refused(&mut bench, client(&plan, Flow::udp, 2));
            pass(&mut bench, &second.back, 0, "an answer");
            change(&mut bench, |_, flags, _| *flags &= !LASTING);
        }
        forget(&mut bench, |_| true);
    }
}

#[test]
fn that_of_an_association_is_had_again_until_it_is_answered() {
    let mut bench = bench(1);
    for plan in plans() {
        let inside = bench.enters(client(&plan, Flow::sctp, 0), SYN);
        let wire = bench.leaves(inside, SYN);
        let second = Connection::open_masqueraded(&mut bench, client(&plan, Flow::sctp, 1));
        assert_eq!(second.forward[1].2, wire);
        is_refused(&mut bench, client(&plan, Flow::sctp, 2));
        forget(&mut bench, |_| true);
    }
}

/// The kernel has evicted all rows but that of the reply.
#[test]
fn that_of_an_evicted_connection_is_had_again() {
    let mut bench = bench(1);
    for plan in plans() {
        for new in TRANSPORTS {
            let first = Connection::open_masqueraded(&mut bench, client(&plan, new, 0));
            change(&mut bench, |_, flags, _| *flags |= LASTING);
            forget(&mut bench, |row| row.role == Role::DNAT || row.role == Role::SNAT);
            is_refused(&mut bench, client(&plan, new, 9));
            forget(&mut bench, |row| row.role != Role::REV_SNAT || row.from != first.back[0].1);
            let second = Connection::open_masqueraded(&mut bench, client(&plan, new, 1));
            assert_eq!(port(&second), port(&first));
            forget(&mut bench, |_| true);
        }
    }
}

#[test]
fn a_free_one_comes_first_then_that_of_the_one_silent_longest() {
    const COUNT: u16 = 8;
    let mut bench = bench(COUNT);
    for plan in plans() {
        let mut connections: Vec<_> = (0..COUNT - 1).map(|i| open(&mut bench, &plan, i)).collect();
        connections.iter().for_each(|connection| close(&mut bench, connection));
        connections.push(open(&mut bench, &plan, COUNT));
        let ports: BTreeSet<_> = connections.iter().map(port).collect();
        assert_eq!(ports.len(), usize::from(COUNT), "each has its own");
        // The third one is closed too, but has been heard of last.
        for (age, third) in [(3, 0), (2, 1), (1, 2)] {
            let at = port(&connections[third]);
            change(&mut bench, |row, _, ticks| {
                *ticks = ticks.wrapping_sub(if row.from.dst.1 == at { age * 10_000 } else { 0 });
            });
        }
        for third in 0..3 {
            let next = open(&mut bench, &plan, 100 + third);
            assert_eq!(port(&next), port(&connections[usize::from(third)]), "{third}");
        }
        forget(&mut bench, |_| true);
    }
}

/// No other is looked for.
#[test]
fn that_of_the_first_that_has_long_been_silent_is_had_again() {
    const COUNT: u16 = 8;
    let mut bench = bench(COUNT);
    for plan in plans() {
        let first = port(&open(&mut bench, &plan, 100));
        forget(&mut bench, |_| true);
        for number in 0..COUNT {
            let connection = open(&mut bench, &plan, number);
            close(&mut bench, &connection);
            // All others have been silent longer.
            let longer = if port(&connection) == first { 0 } else { 1000 };
            let is_of = |row: &Row| [row.from.dst.1, row.to.src.1].contains(&port(&connection));
            change(&mut bench, |row, _, ticks| {
                *ticks = ticks.wrapping_sub(if is_of(row) { longer } else { 0 });
            });
        }
        silence(&mut bench, 3_000_000_000);
        assert_eq!(port(&open(&mut bench, &plan, 100)), first);
        forget(&mut bench, |_| true);
    }
}

/// The connection may live on in the other ones.
#[test]
fn none_is_had_again_while_maps_are_replaced() {
    let mut bench = bench(1);
    for plan in plans() {
        let first = open(&mut bench, &plan, 0);
        close(&mut bench, &first);
        bench.set_flag(HANDOVER, true);
        is_refused(&mut bench, client(&plan, Flow::tcp, 1));
        bench.set_flag(HANDOVER, false);
        let second = open(&mut bench, &plan, 2);
        assert_eq!(port(&second), port(&first));
        forget(&mut bench, |_| true);
    }
}

/// What the backend's connections have carried.
fn carried<A: KernelAddr>(maps: &impl FamilyMaps<A>) -> Traffic {
    let mut sum = Traffic::default();
    maps.each_conntrack(&mut |_, row| sum += row.traffic()).expect("rows");
    let of_backend = |(key, _): &(CounterKey, _)| key.backend == BACKEND_ID;
    maps.traffic().expect("traffic").into_iter().filter(of_backend).for_each(|(_, more)| sum += more);
    sum
}

/// Programs remove rows, too: none of what they have counted is lost.
#[test]
fn what_the_ended_connections_have_carried_is_kept() {
    let mut bench = bench(2);
    for plan in plans() {
        for number in 0..20 {
            let connection = open(&mut bench, &plan, number);
            close(&mut bench, &connection);
            // By the same port again, before another takes it.
            let again = open(&mut bench, &plan, number);
            pass(&mut bench, &again.back, RST, "the backend's end");
        }
    }
    for sum in [carried(bench.maps.v4()), carried(bench.maps.v6())] {
        assert_eq!((sum.in_packets, sum.out_packets), (20 * 5, 20 * 4), "{sum:?}");
        assert!(sum.in_bytes > sum.in_packets * 40 && sum.out_bytes > sum.out_packets * 40, "{sum:?}");
    }
}

/// Of a host process's connection, which has two rows.
#[test]
fn that_of_a_process_of_the_host_is_had_again() {
    on_a_node(|node| {
        let bench = &mut node.bench;
        with_ports(bench, 1);
        for plan in plans() {
            let mut wires = BTreeSet::new();
            // The last one opens its connection anew.
            for number in [0, 1, 2, 2] {
                let flow = Flow::tcp((plan.node, 50000 + number), (plan.cluster_ip, 80));
                let wire = checked(&bench.egress_of_host(&frame(flow, SYN)).packet);
                wires.insert(wire.src.1);
                pass(bench, &[(Hook::In, wire.reversed(), flow.reversed())], SYN | ACK, "the answer");
                pass(bench, &[(Hook::OutOfHost, flow, wire)], RST, "the end");
            }
            assert_eq!(wires.len(), 1);
            let sum = if plan.node.is_ipv4() { carried(bench.maps.v4()) } else { carried(bench.maps.v6()) };
            assert_eq!((sum.in_packets, sum.out_packets), (4 * 2, 4), "none is lost: {sum:?}");
            forget(bench, |_| true);
        }
        Ok(())
    })
    .expect("a node");
}

#[test]
fn the_driver_has_it_again_too() {
    on_a_node(|node| {
        with_ports(&mut node.bench, 1);
        for plan in plans() {
            let mut wires = BTreeSet::new();
            for number in 0..3 {
                let flow = client(&plan, Flow::tcp, number);
                let wire = checked(&node.xdp(&frame(flow, SYN))?.packet);
                wires.insert(wire.src.1);
                for (flags, back) in [(SYN | ACK, true), (ACK, false), (FIN | ACK, false), (FIN | ACK, true)]
                {
                    let (before, behind) =
                        if back { (wire.reversed(), flow.reversed()) } else { (flow, wire) };
                    assert_eq!(checked(&node.xdp(&frame(before, flags))?.packet), behind);
                }
            }
            assert_eq!(wires.len(), 1);
            forget(&mut node.bench, |_| true);
        }
        Ok(())
    })
    .expect("a node");
}

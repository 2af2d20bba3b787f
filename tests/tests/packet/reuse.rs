//! A client's port, used again.

use crate::{
    bench::{BACKEND_ID, BACKEND_PORT, Bench, NODE_PORT, PROTOCOLS, Plan, SERVICE_PORT, plans, v4_of, v6_of},
    connection::a_while_later,
    frames::{ACK, FIN, Flow, RST, SYN},
};
use proxy_common::maps::backends::{Backend, flags::PRESENT};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore},
    kernel::KernelAddr,
};
use std::net::IpAddr;

const OTHER_ID: u32 = 50;
const OTHER_PORT: u16 = BACKEND_PORT + 50;

#[test]
fn a_connection_goes_on_to_a_backend_that_is_gone_and_a_new_one_does_not() {
    let mut bench = Bench::new();
    for plan in plans() {
        let flows =
            [Flow::tcp, Flow::sctp].map(|new| new((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT)));
        for flow in flows {
            assert_eq!(bench.enters(flow, SYN).dst, (plan.backend, BACKEND_PORT));
        }
        replace(&mut bench, &plan);
        for flow in flows {
            assert_eq!(bench.enters(flow, ACK).dst, (plan.backend, BACKEND_PORT), "{flow:?}");
            assert_eq!(bench.enters(flow, SYN).dst, (plan.backend, OTHER_PORT), "{flow:?}");
            assert_eq!(bench.enters(flow, ACK).dst, (plan.backend, OTHER_PORT), "{flow:?}");
        }
    }
}

/// Another backend in the place of the only one, for every protocol.
fn replace(bench: &mut Bench, plan: &Plan) {
    if plan.pod.is_ipv4() {
        replace_in(bench.maps.v4(), v4_of(plan.backend));
    } else {
        replace_in(bench.maps.v6(), v6_of(plan.backend));
    }
}

fn replace_in<A: KernelAddr>(maps: &mut impl FamilyMaps<A>, addr: A) {
    for (i, proto) in (0..).zip(PROTOCOLS) {
        let (id, other) = (BACKEND_ID + i, OTHER_ID + i);
        maps.put_backends(&[(other, Backend { addr, port: OTHER_PORT, proto, flags: PRESENT })])
            .expect("a backend");
        maps.put_slots(id, &[other]).expect("a slot");
        maps.put_backends(&[(id, Backend::default())]).expect("no backend");
    }
}

/// A masqueraded connection; the flow that the stack sees, and the one on the wire.
fn masqueraded(bench: &mut Bench, node: IpAddr, client: (IpAddr, u16)) -> (Flow, Flow) {
    let inside = bench.enters(Flow::tcp(client, (node, NODE_PORT)), SYN);
    let wire = bench.leaves(inside, SYN);
    assert_eq!(bench.enters(wire.reversed(), SYN | ACK), inside.reversed());
    (inside, wire)
}

#[test]
fn the_source_port_of_an_ended_connection_may_be_anothers() {
    let mut bench = Bench::new();
    for plan in plans() {
        let (inside, wire) = masqueraded(&mut bench, plan.node, (plan.outside, 40000));
        assert_eq!(bench.leaves(inside, FIN | ACK), wire);
        assert_eq!(bench.enters(wire.reversed(), FIN | ACK), inside.reversed());
        let (reset, reset_wire) = masqueraded(&mut bench, plan.node, (plan.outside, 40001));
        assert_eq!(bench.leaves(reset, RST), reset_wire);
        // Netfilter, or a process of the host, takes the port for a connection of its own.
        for theirs in [wire, reset_wire] {
            assert_eq!(bench.leaves(theirs, SYN), theirs);
            assert_eq!(bench.enters(theirs.reversed(), SYN | ACK), theirs.reversed());
            assert_eq!(bench.enters(theirs.reversed(), ACK), theirs.reversed());
            assert_eq!(bench.leaves(theirs, ACK), theirs);
        }
        assert_ne!(bench.leaves(inside, ACK), wire, "a late packet does not get in between");
    }
}

#[test]
fn a_connection_that_goes_on_keeps_its_source_port() {
    let mut bench = Bench::new();
    for plan in plans() {
        let (inside, wire) = masqueraded(&mut bench, plan.node, (plan.outside, 40000));
        assert_eq!(bench.leaves(inside, FIN | ACK), wire);
        // The backend has not had the client's first answer.
        assert_eq!(bench.enters(wire.reversed(), SYN | ACK), inside.reversed());
        assert_eq!(bench.enters(wire.reversed(), ACK), inside.reversed());
    }
}

#[test]
fn a_backend_that_is_connected_to_directly_answers_for_itself() {
    let mut bench = Bench::new();
    for plan in plans() {
        let client = (plan.pod, 40000);
        let outside = Flow::tcp(client, (plan.cluster_ip, SERVICE_PORT));
        let direct = bench.enters(outside, SYN);
        assert_eq!(bench.leaves(direct.reversed(), SYN | ACK), outside.reversed());
        assert_eq!(bench.leaves(direct.reversed(), FIN | ACK), outside.reversed());
        assert_eq!(bench.enters(outside, FIN | ACK), direct);
        // The same port, and past the service.
        assert_eq!(bench.enters(direct, SYN), direct);
        for flags in [SYN | ACK, ACK, FIN | ACK] {
            assert_eq!(bench.leaves(direct.reversed(), flags), direct.reversed());
        }
        a_while_later(&mut bench);
        assert_eq!(bench.enters(outside, SYN), direct, "and by the service again");
        assert_eq!(bench.leaves(direct.reversed(), SYN | ACK), outside.reversed());
    }
}

#[test]
fn a_connection_is_not_masqueraded_because_the_one_before_was() {
    let mut bench = Bench::new();
    for plan in plans() {
        // By the node's port, which masquerades everybody.
        let (inside, wire) = masqueraded(&mut bench, plan.node, (plan.pod, 40000));
        assert_eq!(bench.leaves(inside, FIN | ACK), wire);
        assert_eq!(bench.enters(wire.reversed(), FIN | ACK), inside.reversed());
        bench.leaves(inside.reversed(), FIN | ACK);
        a_while_later(&mut bench);
        // From the same port to the same backend by another frontend, which masquerades no pod.
        assert_eq!(bench.enters(Flow::tcp((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT)), SYN), inside);
        assert_eq!(bench.leaves(inside, SYN), inside);
    }
}

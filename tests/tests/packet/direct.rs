//! Connections to backends themselves, beside those that are translated.

use proxy_common::maps::{devices::Device, settings::Settings};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore as _},
    kernel::KernelAddr,
};

use crate::{
    bench::{BACKEND_PORT, Bench, CONTINUE, NODE_PORT, Plan, SERVICE_PORT, SNAT_PORTS, plans},
    connection::{NewFlow, TRANSPORTS, change, silence},
    frames::{ACK, FIN, Flow, SYN, checked, frame},
    uplink::{Uplink, on_a_node},
};

const PORT: u16 = 40000;

/// By the service, and to its backend itself, from one port of a pod.
fn pair(plan: &Plan, new: NewFlow) -> (Flow, Flow) {
    let client = (plan.pod, PORT);
    (new(client, (plan.cluster_ip, SERVICE_PORT)), new(client, (plan.backend, BACKEND_PORT)))
}

/// Sends to the backend and back; the flow that the backend sees.
fn exchange(bench: &mut Bench, flow: Flow, flags: u8, answer: u8) -> Flow {
    let inside = bench.enters(flow, flags);
    assert_eq!(bench.leaves(inside, flags), inside, "no masquerade");
    assert_eq!(bench.leaves(inside.reversed(), answer), flow.reversed(), "{flow:?} as {inside:?}");
    inside
}

#[test]
fn the_later_of_two_gets_another_port() {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in TRANSPORTS {
            let (service, direct) = pair(&plan, new);
            assert_eq!(exchange(&mut bench, service, SYN, SYN | ACK), direct);
            let inside = exchange(&mut bench, direct, SYN, SYN | ACK);
            assert!(SNAT_PORTS.contains(&inside.src.1) && inside.dst == direct.dst, "{inside:?}");
            for _ in 0..3 {
                assert_eq!(exchange(&mut bench, service, ACK, ACK), direct);
                assert_eq!(exchange(&mut bench, direct, ACK, ACK), inside);
            }
        }
    }
}

/// No connection of ours could have the same tuple: nothing is kept of it, however many there are.
#[test]
fn one_to_another_port_than_the_backends_is_nobodys_business() {
    const OTHER_PORT: u16 = BACKEND_PORT + 1000;
    let mut bench = Bench::new();
    for plan in plans() {
        for new in TRANSPORTS {
            let (service, direct) = pair(&plan, new);
            let other = Flow { dst: (plan.backend, OTHER_PORT), ..direct };
            exchange(&mut bench, service, SYN, SYN | ACK);
            let rows = row_count(&mut bench);
            assert_eq!(exchange(&mut bench, other, SYN, SYN | ACK), other);
            let to_node = Flow { src: (plan.node, SNAT_PORTS.start), ..other };
            assert_eq!(bench.leaves(to_node, SYN), to_node);
            assert_eq!(bench.enters(to_node.reversed(), SYN | ACK), to_node.reversed());
            assert_eq!(row_count(&mut bench), rows, "{other:?}");
            assert_eq!(exchange(&mut bench, service, ACK, ACK), direct);
        }
    }
}

/// Rows of connections, of both families.
fn row_count(bench: &mut Bench) -> usize {
    let mut count = 0;
    bench.maps.v4().each_conntrack(&mut |_, _| count += 1).expect("rows");
    bench.maps.v6().each_conntrack(&mut |_, _| count += 1).expect("rows");
    count
}

#[test]
fn one_by_another_port_ends_and_comes_again() {
    let mut bench = Bench::new();
    for plan in plans() {
        let (service, direct) = pair(&plan, Flow::tcp);
        exchange(&mut bench, service, SYN, SYN | ACK);
        for _ in 0..3 {
            let inside = exchange(&mut bench, direct, SYN, SYN | ACK);
            assert_ne!(inside.src.1, PORT);
            assert_eq!(exchange(&mut bench, direct, ACK, ACK), inside);
            assert_eq!(exchange(&mut bench, direct, FIN | ACK, FIN | ACK), inside);
        }
    }
}

#[test]
fn one_that_nobody_has_answered_takes_no_replies() {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in TRANSPORTS {
            let (service, direct) = pair(&plan, new);
            bench.enters(service, SYN);
            exchange(&mut bench, direct, SYN, SYN | ACK);
            exchange(&mut bench, direct, ACK, ACK);
        }
    }
}

#[test]
fn one_that_is_over_gives_way() {
    let mut bench = Bench::new();
    for plan in plans() {
        let (service, direct) = pair(&plan, Flow::tcp);
        exchange(&mut bench, service, SYN, SYN | ACK);
        exchange(&mut bench, service, FIN | ACK, FIN | ACK);
        assert_eq!(exchange(&mut bench, direct, SYN, SYN | ACK), direct);
        assert_eq!(exchange(&mut bench, direct, ACK, ACK), direct);
        // The first comes again, while the second is open.
        let inside = exchange(&mut bench, service, SYN, SYN | ACK);
        assert_ne!(inside.src.1, PORT);
        assert_eq!(exchange(&mut bench, direct, ACK, ACK), direct);
    }
}

/// As long as the client sends, whether the backend answers or not.
#[test]
fn the_place_of_replies_is_kept_while_datagrams_are_sent() {
    const LONG_AGO: u64 = 10_000_000_000;
    fn seen<A: KernelAddr>(maps: &impl FamilyMaps<A>) -> Vec<u64> {
        let mut seen = Vec::new();
        maps.each_conntrack(&mut |_, row| seen.push(row.last_seen)).expect("rows");
        seen
    }
    let mut bench = Bench::new();
    for plan in plans() {
        let (_, direct) = pair(&plan, Flow::udp);
        assert_eq!(bench.enters(direct, 0), direct);
    }
    silence(&mut bench, LONG_AGO);
    change(&mut bench, |_, _, ticks| *ticks = ticks.wrapping_sub(1));
    let (v4, v6) = (seen(bench.maps.v4()), seen(bench.maps.v6()));
    for plan in plans() {
        let (_, direct) = pair(&plan, Flow::udp);
        assert_eq!(bench.enters(direct, 0), direct);
    }
    for (before, after) in [(v4, seen(bench.maps.v4())), (v6, seen(bench.maps.v6()))] {
        assert!(before.len() == 1 && after[0] >= before[0] + LONG_AGO, "{before:?} {after:?}");
    }
}

#[test]
fn datagrams_that_were_there_before_keep_their_port() {
    let mut bench = Bench::new();
    for plan in plans() {
        let (service, direct) = pair(&plan, Flow::udp);
        assert_eq!(exchange(&mut bench, direct, 0, 0), direct);
        let inside = exchange(&mut bench, service, 0, 0);
        assert_ne!(inside.src.1, PORT);
        for _ in 0..3 {
            assert_eq!(exchange(&mut bench, direct, 0, 0), direct);
            assert_eq!(exchange(&mut bench, service, 0, 0), inside);
        }
    }
}

/// The backend answers a SYN by the port of an open connection with what it has of that (RFC 5961 §4).
#[test]
fn a_connection_that_was_there_before_keeps_its_port() {
    let mut bench = Bench::new();
    for plan in plans() {
        let (service, direct) = pair(&plan, Flow::tcp);
        assert_eq!(exchange(&mut bench, direct, SYN, SYN | ACK), direct);
        assert_eq!(bench.enters(service, SYN), direct, "nothing is known of the other yet");
        assert_eq!(bench.leaves(direct.reversed(), ACK), direct.reversed(), "it is not to this one");
        let inside = exchange(&mut bench, service, SYN, SYN | ACK);
        assert_ne!(inside.src.1, PORT);
        assert_eq!(exchange(&mut bench, direct, ACK, ACK), direct);
        assert_eq!(exchange(&mut bench, service, ACK, ACK), inside);
    }
}

/// A client of the NodePort that the node masquerades; the flow that the stack sees, and the one on the wire.
fn masqueraded(bench: &mut Bench, plan: &Plan, new: NewFlow) -> (Flow, Flow) {
    let inside = bench.enters(new((plan.outside, PORT), (plan.node, NODE_PORT)), SYN);
    let wire = bench.leaves(inside, SYN);
    assert_eq!((wire.src.0, wire.dst), (plan.node, (plan.backend, BACKEND_PORT)));
    assert_eq!(bench.enters(wire.reversed(), SYN | ACK), inside.reversed());
    (inside, wire)
}

/// Netfilter masquerades by any port, and a process of the host may bind one.
#[test]
fn what_the_host_sends_by_a_port_of_ours_gets_another() {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in TRANSPORTS {
            let (inside, wire) = masqueraded(&mut bench, &plan, new);
            let theirs = bench.leaves(wire, SYN);
            assert!(theirs.src.0 == plan.node && theirs.src.1 != wire.src.1 && theirs.dst == wire.dst);
            assert_eq!(bench.enters(theirs.reversed(), SYN | ACK), wire.reversed());
            assert_eq!(bench.leaves(wire, ACK), theirs);
            assert_eq!(bench.leaves(inside, ACK), wire);
            assert_eq!(bench.enters(wire.reversed(), ACK), inside.reversed());
        }
    }
}

#[test]
fn what_the_host_has_sent_keeps_its_port() {
    let mut bench = Bench::new();
    let settings = bench.maps.settings().expect("settings");
    bench.maps.put_settings(&Settings { snat_port_count: 2, ..settings }).expect("settings");
    let (taken, free) = (SNAT_PORTS.start, SNAT_PORTS.start + 1);
    for plan in plans() {
        for new in TRANSPORTS {
            let theirs = new((plan.node, taken), (plan.backend, BACKEND_PORT));
            assert_eq!(bench.leaves(theirs, SYN), theirs);
            let (_, wire) = masqueraded(&mut bench, &plan, new);
            assert_eq!(wire.src.1, free);
            assert_eq!(bench.enters(theirs.reversed(), SYN | ACK), theirs.reversed());
        }
    }
}

/// One that was given another port is no reason to look at all that the host sends from then on.
#[test]
fn ports_that_are_not_ours_leave_no_rows() {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in TRANSPORTS {
            let (_, wire) = masqueraded(&mut bench, &plan, new);
            assert_ne!(bench.leaves(wire, SYN), wire);
        }
        let before = rows(&mut bench);
        for new in TRANSPORTS {
            for port in 40_000..40_010 {
                let theirs = new((plan.node, port), (plan.backend, BACKEND_PORT));
                assert_eq!(bench.leaves(theirs, SYN), theirs);
            }
        }
        assert_eq!(rows(&mut bench), before);
    }
}

fn rows(bench: &mut Bench) -> usize {
    let mut count = 0;
    bench.maps.v4().each_conntrack(&mut |_, _| count += 1).expect("rows");
    bench.maps.v6().each_conntrack(&mut |_, _| count += 1).expect("rows");
    count
}

/// A VLAN's device and the one below both carry the programs.
#[test]
fn a_packet_that_comes_by_twice_is_no_connection_of_its_own() {
    let mut bench = Bench::new();
    let device = |vlan| Device { vlan, ..Uplink::device() };
    for plan in plans() {
        for new in TRANSPORTS {
            let (service, direct) = pair(&plan, new);
            bench.maps.replace_devices(&[(1, device(0))]).expect("devices");
            assert_eq!(bench.enters(service, SYN), direct);
            bench.maps.replace_devices(&[(1, device(7))]).expect("devices");
            assert_eq!(bench.enters(direct, SYN), direct);
        }
    }
}

/// So does a NAT that takes a NodePort for its own source port.
#[test]
fn the_answer_to_a_nodes_datagram_is_none_to_a_node_port() {
    let mut bench = Bench::new();
    for plan in plans() {
        let question = Flow::udp((plan.node, NODE_PORT), (plan.outside, 53));
        assert_eq!(bench.leaves(question, 0), question);
        for _ in 0..3 {
            assert_eq!(bench.enters(question.reversed(), 0), question.reversed());
        }
        let client = Flow::udp((plan.outside, 54), (plan.node, NODE_PORT));
        assert_eq!(bench.enters(client, 0).dst, (plan.backend, BACKEND_PORT), "a client is one");
    }
}

/// The driver's program leaves all this to the stack.
#[test]
fn drivers_leave_it_to_the_stack() -> anyhow::Result<()> {
    on_a_node(|node| {
        let [v4, v6] = plans();
        for plan in [v4, v6] {
            let client = (plan.outside, PORT);
            let first = frame(Flow::tcp(client, (plan.node, NODE_PORT)), SYN);
            let wire = checked(&node.xdp(&first)?.packet);
            assert_eq!((wire.src.0, wire.dst), (plan.node, (plan.backend, BACKEND_PORT)));
            // Of a connection by that port that the backend has had before.
            let early = frame(wire.reversed(), ACK);
            let run = node.xdp(&early)?;
            assert_eq!((run.verdict, &run.packet), (crate::bpf::Kind::Xdp.pass(), &early));
            assert_eq!(node.bench.ingress(&early).packet, early);
            let again = checked(&node.xdp(&first)?.packet);
            assert_ne!(again.src.1, wire.src.1);
            let answer = node.xdp(&frame(again.reversed(), SYN | ACK))?;
            assert_eq!(checked(&answer.packet).dst, client);
        }
        Ok(())
    })
}

#[test]
fn devices_without_ethernet_do_the_same() {
    let mut bench = Bench::new();
    let [plan, _] = plans();
    let client = (crate::bench::l3_source(plan.pod), PORT);
    let service = frame(Flow::tcp(client, (plan.cluster_ip, SERVICE_PORT)), SYN);
    let direct = Flow::tcp(client, (plan.backend, BACKEND_PORT));
    assert_eq!(checked(&bench.ingress_l3(&service).packet), direct);
    let run = bench.ingress_l3(&frame(direct, SYN));
    let inside = checked(&run.packet);
    assert!(run.action == CONTINUE && inside.src.1 != PORT, "{inside:?}");
}

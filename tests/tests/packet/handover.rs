//! Connections that are opened and end while one generation of maps and programs hands over to the next.

use proxy_common::maps::settings::Settings;
use proxy_userspace::dataplane::MapStore as _;

use crate::{
    bench::{Bench, CONTINUE, NODE_PORT, SNAT_PORTS, plans},
    connection::{Connection, Hook, forget, pass},
    frames::{ACK, FIN, Flow, SYN, checked, frame},
};

/// A packet on the node, past the programs of both generations.
fn meets(both: &mut [Bench; 2], hook: Hook, flow: Flow, tcp_flags: u8) -> Flow {
    both.iter_mut().fold(flow, |flow, bench| {
        let bytes = frame(flow, tcp_flags);
        let run = if hook == Hook::In { bench.ingress(&bytes) } else { bench.egress(&bytes) };
        assert_eq!(run.action, CONTINUE, "{flow:?}");
        checked(&run.packet)
    })
}

/// One source port, so that two connections have the same, one after the other.
fn with_one_port() -> Bench {
    let mut bench = Bench::new();
    let settings = bench.maps.settings().expect("settings");
    let one = Settings { snat_port_first: SNAT_PORTS.start, snat_port_count: 1, ..settings };
    bench.maps.put_settings(&one).expect("settings");
    bench
}

/// The rows of the earlier one have been copied by then.
#[test]
fn a_connection_keeps_the_port_of_one_that_ended_before_it_was_taken() {
    let mut outgoing = with_one_port();
    let plans = plans();
    let of = |client| plans.map(|plan| Flow::tcp((plan.outside, client), (plan.node, NODE_PORT)));
    for flow in of(40000) {
        let ended = Connection::open_masqueraded(&mut outgoing, flow);
        for (steps, flags) in [(&ended.forward, FIN | ACK), (&ended.back, FIN | ACK), (&ended.forward, ACK)] {
            pass(&mut outgoing, steps, flags, "the end");
        }
    }
    let mut incoming = outgoing.successor();
    incoming.datapath.begin_handover(&mut incoming.maps).expect("it begins");
    assert_eq!(forget(&mut outgoing, |_| true), 8, "both connections");

    let mut both = [outgoing, incoming];
    let opened = of(40001).map(|flow| {
        let inside = meets(&mut both, Hook::In, flow, SYN);
        (flow, inside, meets(&mut both, Hook::Out, inside, SYN))
    });
    let [_, incoming] = &mut both;
    incoming.datapath.finish_handover(&mut incoming.maps).expect("it ends");
    for (flow, inside, wire) in opened {
        assert_eq!(wire.src.1, SNAT_PORTS.start);
        let back = incoming.enters(wire.reversed(), SYN | ACK);
        assert_eq!(back, inside.reversed());
        assert_eq!(incoming.leaves(back, SYN | ACK), flow.reversed());
        assert_eq!(incoming.enters(flow, ACK), inside);
        assert_eq!(incoming.leaves(inside, ACK), wire);
    }
}

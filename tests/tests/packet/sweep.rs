//! Connections that packets have opened, and what a sweep makes of them.

mod random;
mod room;

use std::net::IpAddr;

use proxy_userspace::{
    clock::monotonic_nanos,
    dataplane::{MapName, Pressure, Reconciler, Survey, Swept, Timeouts},
    kernel::KernelSockets,
    model::Family,
};

use crate::{
    bench::{Bench, NODE_PORT, Plan, SERVICE_PORT, plans},
    connection::{Connection, pass},
    frames::{ACK, FIN, Flow, SYN},
};

fn clock() -> u64 {
    monotonic_nanos().expect("a clock")
}

/// A sweep as it will be after so many seconds without a packet.
fn sweep(bench: &mut Bench, reconciler: &Reconciler, seconds: u64) -> (Swept, Pressure) {
    sweep_after(bench, reconciler, clock(), seconds)
}

/// A sweep as it is so many seconds after `start`, in nanoseconds.
fn sweep_after(bench: &mut Bench, reconciler: &Reconciler, start: u64, seconds: u64) -> (Swept, Pressure) {
    let now = start + seconds * 1_000_000_000;
    let survey = Survey::take(&mut bench.maps, now, &Timeouts::default()).expect("readable maps");
    let pressure = reconciler.pressure(&mut bench.maps, &survey);
    let verdict = reconciler.judge(&survey);
    let swept = survey.remove(&verdict, &mut bench.maps, &mut KernelSockets::default());
    (swept.expect("writable maps"), pressure)
}

fn rows(pressure: &Pressure, family: Family) -> usize {
    let is_asked = |map: MapName, of| map == MapName::Conntrack && of == Some(family);
    pressure.maps.iter().find(|fill| is_asked(fill.map, fill.family)).map_or(0, |fill| fill.rows)
}

fn family(plan: &Plan) -> Family {
    Family::of(plan.pod)
}

#[test]
fn connections_go_when_their_time_has_come() {
    let mut bench = Bench::new();
    let reconciler = Reconciler::adopt(&mut bench.maps).expect("readable maps");
    for plan in plans() {
        let begin = clock();
        let to = (plan.cluster_ip, SERVICE_PORT);
        // A question, a handshake that never ends, a connection, and one that both sides closed.
        bench.enters(Flow::udp((plan.pod, 1), to), 0);
        bench.enters(Flow::tcp((plan.pod, 2), to), SYN);
        for (port, last) in [(3, ACK), (4, FIN | ACK)] {
            let inside = bench.enters(Flow::tcp((plan.pod, port), to), SYN);
            bench.leaves(inside.reversed(), SYN | ACK);
            bench.enters(Flow::tcp((plan.pod, port), to), last);
            bench.leaves(inside.reversed(), last);
        }
        let end = clock();
        let mut left = 8;
        for (seconds, expired) in [(29, 0), (32, 2), (119, 0), (122, 1), (86_399, 0), (86_402, 1)] {
            // However long the packets took: none is older than `begin`, none younger than `end`.
            let start = if expired == 0 { begin } else { end };
            let (swept, pressure) = sweep_after(&mut bench, &reconciler, start, seconds);
            assert_eq!(swept, Swept { expired, ..Swept::default() }, "after {seconds} s");
            if expired == 0 {
                assert_eq!(rows(&pressure, family(&plan)), left, "before {seconds} s");
            }
            left -= 2 * expired;
        }
        assert_eq!(left, 0);
    }
}

#[test]
fn a_source_port_is_kept_while_the_backend_may_be_in_time_wait() {
    let mut bench = Bench::new();
    let reconciler = Reconciler::adopt(&mut bench.maps).expect("readable maps");
    for plan in plans() {
        let begin = clock();
        let flow = Flow::tcp((plan.outside, 1), (plan.node, NODE_PORT));
        let connection = Connection::open_masqueraded(&mut bench, flow);
        pass(&mut bench, &connection.back, FIN | ACK, "the backend closes");
        pass(&mut bench, &connection.forward, FIN | ACK, "the client closes");
        for (start, seconds, expired) in [(begin, 59, 0), (clock(), 62, 1)] {
            let (swept, _) = sweep_after(&mut bench, &reconciler, start, seconds);
            assert_eq!(swept, Swept { expired, ..Swept::default() }, "after {seconds} s");
        }
    }
}

#[test]
fn masquerading_is_measured_by_address_and_backend() {
    let mut bench = Bench::new();
    let reconciler = Reconciler::adopt(&mut bench.maps).expect("readable maps");
    for plan in plans() {
        for port in 1..=3 {
            let flow = Flow::tcp((plan.outside, port), (plan.node, NODE_PORT));
            assert_eq!(Connection::open_masqueraded(&mut bench, flow).forward[1].2.src.0, plan.node);
        }
        // One that is not yet a connection gives its port away.
        let inside = bench.enters(Flow::tcp((plan.outside, 4), (plan.node, NODE_PORT)), SYN);
        bench.leaves(inside, SYN);
        let (swept, pressure) = sweep(&mut bench, &reconciler, 1);
        assert_eq!((swept, rows(&pressure, family(&plan))), (Swept::default(), 16));
        let own = |address: IpAddr| address == plan.node;
        let ports = pressure.snat.iter().find(|ports| own(ports.address)).expect("the node's address");
        assert_eq!((ports.protocol(), ports.in_use, ports.fullest), ("TCP", 3, 3));
        assert_eq!(ports.backend.ip(), plan.backend);
        let (swept, _) = sweep(&mut bench, &reconciler, 86_402);
        assert_eq!(swept.expired, 4);
        let (_, pressure) = sweep(&mut bench, &reconciler, 0);
        assert_eq!(
            (rows(&pressure, family(&plan)), pressure.snat.iter().any(|p| own(p.address))),
            (0, false)
        );
    }
}

#[test]
fn datagrams_are_cut_when_their_service_is_gone() {
    let mut bench = Bench::new();
    let mut reconciler = Reconciler::adopt(&mut bench.maps).expect("readable maps");
    for plan in plans() {
        let to = (plan.cluster_ip, SERVICE_PORT);
        bench.enters(Flow::udp((plan.pod, 1), to), 0);
        bench.enters(Flow::tcp((plan.pod, 1), to), SYN);
    }
    assert_eq!(sweep(&mut bench, &reconciler, 1).0, Swept::default());
    reconciler.prune();
    reconciler.apply(&mut bench.maps);
    assert_eq!(sweep(&mut bench, &reconciler, 1).0, Swept { stale: 2, cut: [1, 1], ..Swept::default() });
    let (_, pressure) = sweep(&mut bench, &reconciler, 1);
    for plan in plans() {
        assert_eq!(rows(&pressure, family(&plan)), 2, "the TCP connection goes on");
    }
}

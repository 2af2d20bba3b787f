//! From a client to a backend.

use std::net::IpAddr;

use crate::{
    bench::{BACKEND_PORT, Bench, CONTINUE, NODE_PORT, SERVICE_PORT, SNAT_PORTS, plans},
    frames::{ACK, FIN, Flow, SYN, checked, frame, transport, with_ip},
};

type NewFlow = fn((IpAddr, u16), (IpAddr, u16)) -> Flow;
const TRANSPORTS: [NewFlow; 3] = [Flow::tcp, Flow::udp, Flow::sctp];

#[test]
fn what_is_no_service_goes_on_byte_for_byte() {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in TRANSPORTS {
            for dst in [(plan.stranger, SERVICE_PORT), (plan.node, 22)] {
                let bytes = frame(new((plan.pod, 40000), dst), SYN);
                for run in [bench.ingress(&bytes), bench.egress(&bytes)] {
                    assert_eq!((run.action, run.packet), (CONTINUE, bytes.clone()));
                }
            }
        }
    }
}

#[test]
fn a_pod_reaches_the_backend_of_a_cluster_ip_and_keeps_its_address() {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in TRANSPORTS {
            let client = (plan.pod, 40000);
            let to_backend = new(client, (plan.backend, BACKEND_PORT));
            let first = bench.enters(new(client, (plan.cluster_ip, SERVICE_PORT)), SYN);
            assert_eq!(first, to_backend);
            let later = bench.enters(new(client, (plan.cluster_ip, SERVICE_PORT)), ACK);
            assert_eq!(later, to_backend);
            assert_eq!(bench.leaves(to_backend, SYN), to_backend, "no masquerade");
        }
    }
}

#[test]
fn an_outside_client_of_a_node_port_is_masqueraded() {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in TRANSPORTS {
            let client = (plan.outside, 40000);
            let inside = bench.enters(new(client, (plan.node, NODE_PORT)), SYN);
            assert_eq!(inside, new(client, (plan.backend, BACKEND_PORT)), "the stack sees the true client");
            let wire = bench.leaves(inside, SYN);
            assert_eq!((wire.src.0, wire.dst), (plan.node, inside.dst));
            assert!(SNAT_PORTS.contains(&wire.src.1), "{wire:?}");
            assert_eq!(bench.leaves(inside, ACK), wire, "one port per connection");
        }
    }
}

#[test]
fn a_pod_that_reaches_itself_sees_the_node() {
    let mut bench = Bench::new();
    for plan in plans() {
        let client = (plan.backend, 40000);
        let inside = bench.enters(Flow::tcp(client, (plan.cluster_ip, SERVICE_PORT)), SYN);
        assert_eq!(bench.leaves(inside, SYN).src.0, plan.node);
    }
}

#[test]
fn two_frontends_of_one_backend_take_the_same_client_port() {
    let mut bench = Bench::new();
    for plan in plans() {
        let client = (plan.pod, 40000);
        let one = bench.enters(Flow::tcp(client, (plan.cluster_ip, SERVICE_PORT)), SYN);
        let two = bench.enters(Flow::tcp(client, (plan.other_ip, SERVICE_PORT)), SYN);
        assert_ne!(one.src.1, two.src.1, "the replies must differ");
        for (inside, vip) in [(one, plan.cluster_ip), (two, plan.other_ip)] {
            let reply = bench.leaves(inside.reversed(), SYN | ACK);
            assert_eq!(reply, Flow::tcp((vip, SERVICE_PORT), client));
        }
    }
}

#[test]
fn a_reused_client_port_starts_a_new_connection() {
    let mut bench = Bench::new();
    for plan in plans() {
        let flow = Flow::tcp((plan.outside, 40000), (plan.node, NODE_PORT));
        let inside = bench.enters(flow, SYN);
        let wire = bench.leaves(inside, SYN);
        bench.enters(flow, FIN | ACK);
        let inside = bench.enters(flow, SYN);
        let ports: Vec<_> = (0..2).map(|_| bench.leaves(inside, SYN).src.1).collect();
        assert_eq!(ports[0], ports[1]);
        // As without a service: the backend knows by the sequence numbers that it is another.
        assert_eq!(ports[0], wire.src.1);
    }
}

#[test]
fn a_udp_checksum_of_none_stays_none() {
    let mut bench = Bench::new();
    let [plan, _] = plans();
    let flow = Flow::udp((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
    let mut datagram = transport(flow, 0, b"hello");
    datagram[6..8].fill(0);
    let run = bench.ingress(&with_ip(flow, &datagram));
    assert_eq!(checked(&run.packet).dst, (plan.backend, BACKEND_PORT));
    assert_eq!(run.packet[14 + 20 + 6..][..2], [0, 0]);
}

#[test]
fn an_empty_datagram_is_a_datagram() {
    let mut bench = Bench::new();
    for plan in plans() {
        let flow = Flow::udp((plan.pod, 40001), (plan.cluster_ip, SERVICE_PORT));
        let run = bench.ingress(&with_ip(flow, &transport(flow, 0, b"")));
        assert_eq!(checked(&run.packet).dst, (plan.backend, BACKEND_PORT));
    }
}

#[test]
fn an_sctp_checksum_left_to_hardware_is_left_alone() {
    let mut bench = Bench::new();
    for plan in plans() {
        let flow = Flow::sctp((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
        let mut packet = transport(flow, SYN, b"");
        packet[8..12].fill(0);
        let run = bench.ingress(&with_ip(flow, &packet));
        let at = run.packet.len() - packet.len();
        assert_eq!(run.packet[at + 2..at + 4], BACKEND_PORT.to_be_bytes());
        assert_eq!(run.packet[at + 8..at + 12], [0; 4]);
    }
}

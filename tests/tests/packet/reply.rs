//! From a backend to a client.

use crate::{
    bench::{BACKEND_PORT, Bench, NODE_PORT, SERVICE_PORT, plans},
    frames::{ACK, Flow, SYN},
};

#[test]
fn a_reply_comes_from_the_frontend() {
    let mut bench = Bench::new();
    for plan in plans() {
        let client = (plan.pod, 40000);
        let inside = bench.enters(Flow::tcp(client, (plan.cluster_ip, SERVICE_PORT)), SYN);
        let inside_reply = bench.enters(inside.reversed(), SYN | ACK);
        assert_eq!(inside_reply, inside.reversed(), "the stack sees backend and client");
        let reply = bench.leaves(inside_reply, SYN | ACK);
        assert_eq!(reply, Flow::tcp((plan.cluster_ip, SERVICE_PORT), client));
    }
}

#[test]
fn a_masqueraded_reply_finds_its_client() {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in [Flow::tcp, Flow::udp, Flow::sctp] {
            let client = (plan.outside, 40000);
            let inside = bench.enters(new(client, (plan.node, NODE_PORT)), SYN);
            let wire = bench.leaves(inside, SYN);
            let inside_reply = bench.enters(wire.reversed(), SYN | ACK);
            assert_eq!(inside_reply, new((plan.backend, BACKEND_PORT), client));
            let reply = bench.leaves(inside_reply, SYN | ACK);
            assert_eq!(reply, new((plan.node, NODE_PORT), client));
        }
    }
}

#[test]
fn a_backend_that_speaks_first_is_not_translated() {
    let mut bench = Bench::new();
    for plan in plans() {
        let flow = Flow::tcp((plan.backend, BACKEND_PORT), (plan.pod, 40000));
        assert_eq!(bench.leaves(flow, SYN), flow);
    }
}

//! Packets inside others, at the node of their backend.

use std::net::IpAddr;

use etherparse::{IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header};
use proxy_common::{
    DropReason,
    maps::{
        backends::{Backend, flags::PRESENT},
        frontends::{ClientRule, Frontend, FrontendKey, Kind},
        slots::SlotRange,
    },
};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore},
    kernel::KernelAddr,
};

use crate::{
    bench::{BACKEND_ID, BACKEND_PORT, Bench, CONTINUE, NODE_PORT, Plan, SHOT, plans, v4_of, v6_of},
    frames::{Flow, SYN, checked, frame},
};

const ETHERNET: usize = 14;
/// What our own outer headers have.
const ID: u16 = 0x7364;
/// A port of the balancer's address that is served by DSR.
const PORT: u16 = 443;
/// A NodePort that is, too.
const DSR_NODE_PORT: u16 = NODE_PORT + 1;

/// A bench where both ports lead to the backend, which is on this node.
fn bench() -> Bench {
    let mut bench = Bench::new();
    let [v4, v6] = plans();
    serve(bench.maps.v4(), v4_of(v4.balancer));
    serve(bench.maps.v6(), v6_of(v6.balancer));
    bench
}

fn serve<A: KernelAddr>(maps: &mut impl FamilyMaps<A>, balancer: A) {
    let one = SlotRange { offset: BACKEND_ID, len: 1 };
    let rules = ClientRule::pack(ClientRule(0), ClientRule(0), ClientRule(ClientRule::DSR));
    let row = |kind: Kind| Frontend {
        service: 1,
        cluster: one,
        local: one,
        rules,
        kind: kind.0,
        ..Frontend::default()
    };
    let key = |addr, port| FrontendKey { addr, port, proto: 6, pad: 0 };
    maps.put_frontends(&[
        (key(balancer, PORT), row(Kind::LOAD_BALANCER)),
        (key(A::default(), DSR_NODE_PORT), row(Kind::NODE_PORT)),
    ])
    .expect("frontends");
}

/// The frame's packet inside one from `src` to `dst`.
fn inside(frame: &[u8], src: IpAddr, dst: IpAddr, id: u16) -> Vec<u8> {
    let (ethernet, packet) = frame.split_at(ETHERNET);
    let mut outer = ethernet.to_vec();
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut header =
                Ipv4Header::new(packet.len() as u16, 64, IpNumber::IPV4, src.octets(), dst.octets())
                    .expect("a header");
            header.identification = id;
            header.header_checksum = header.calc_header_checksum();
            outer.extend(header.to_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => outer.extend(
            Ipv6Header {
                traffic_class: 0,
                flow_label: Ipv6FlowLabel::ZERO,
                payload_length: packet.len() as u16,
                next_header: IpNumber::IPV6,
                hop_limit: 64,
                source: src.octets(),
                destination: dst.octets(),
            }
            .to_bytes(),
        ),
        _ => panic!("of two families"),
    }
    outer.extend(packet);
    outer
}

fn to(plan: &Plan, dst: (IpAddr, u16)) -> Vec<u8> {
    frame(Flow::tcp((plan.outside, 40000), dst), SYN)
}

#[test]
fn a_packet_for_a_backend_here_is_taken_out_and_its_reply_comes_from_the_frontend() {
    let mut bench = bench();
    for plan in plans() {
        // A NodePort is that of the node which the client reached, not of this one.
        for vip in [(plan.balancer, PORT), (plan.stranger, DSR_NODE_PORT)] {
            let run = bench.ingress(&inside(&to(&plan, vip), plan.unallocated, plan.backend, ID));
            assert_eq!(run.action, CONTINUE);
            let inner = Flow::tcp((plan.outside, 40000), (plan.backend, BACKEND_PORT));
            let taken = checked(&run.packet);
            assert_eq!((taken.src.0, taken.dst), (inner.src.0, inner.dst));
            let reply = bench.leaves(taken.reversed(), SYN);
            assert_eq!((reply.src, reply.dst), (vip, inner.src));
        }
    }
}

#[test]
fn what_its_own_packet_would_not_get_is_dropped() {
    let mut bench = bench();
    for plan in plans() {
        // A backend, but none of this frontend's.
        let other = plan.pod;
        if plan.pod.is_ipv4() {
            add_backend(bench.maps.v4(), v4_of(other));
        } else {
            add_backend(bench.maps.v6(), v6_of(other));
        }
        let before = bench.drops(DropReason::UnknownDsrBackend);
        let packet = inside(&to(&plan, (plan.balancer, PORT)), plan.unallocated, other, ID);
        assert_eq!(bench.ingress(&packet).action, SHOT);
        assert_eq!(bench.drops(DropReason::UnknownDsrBackend), before + 1);
    }
}

fn add_backend<A: KernelAddr>(maps: &mut impl FamilyMaps<A>, addr: A) {
    let backend = Backend { addr, port: BACKEND_PORT, proto: 6, flags: PRESENT };
    maps.put_backends(&[(60, backend)]).expect("a backend");
}

#[test]
fn tunnels_of_others_go_on_byte_for_byte() {
    let mut bench = bench();
    for plan in plans() {
        let Plan { unallocated: far, backend, stranger, node, balancer, outside, .. } = plan;
        let mut cases = vec![
            // Between nodes, whatever is inside.
            inside(&to(&plan, (stranger, DSR_NODE_PORT)), far, node, ID),
            // To a backend that ends a tunnel of its own.
            inside(&to(&plan, (stranger, 9)), far, backend, ID),
            inside(&frame(Flow::udp((outside, 40000), (balancer, PORT)), 0), far, stranger, ID),
        ];
        if node.is_ipv4() {
            cases.push(inside(&to(&plan, (balancer, PORT)), far, backend, 0));
        }
        for packet in cases {
            let run = bench.ingress(&packet);
            assert_eq!((run.action, run.packet), (CONTINUE, packet));
        }
    }
}

//! ICMP echo.

use etherparse::{Icmpv4Slice, Icmpv6Slice, IpNumber, PacketBuilder};

use proxy_common::DropReason;

use crate::bench::{Bench, CONTINUE, Plan, REDIRECT, SHOT, plans};

fn request(plan: &Plan, dst: std::net::IpAddr) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let mut bytes = Vec::new();
    match (plan.pod, dst) {
        (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) => {
            let builder = ethernet.ipv4(src.octets(), dst.octets(), 9).icmpv4_echo_request(7, 1);
            builder.write(&mut bytes, b"ping").expect("to memory");
        }
        (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) => {
            let builder = ethernet.ipv6(src.octets(), dst.octets(), 9).icmpv6_echo_request(7, 1);
            builder.write(&mut bytes, b"ping").expect("to memory");
        }
        _ => panic!("one family"),
    }
    bytes
}

#[test]
fn a_cluster_ip_answers_and_others_do_not() {
    let mut bench = Bench::new();
    for plan in plans() {
        let run = bench.ingress(&request(&plan, plan.cluster_ip));
        assert_eq!(run.action, REDIRECT);
        let headers = etherparse::PacketHeaders::from_ethernet_slice(&run.packet).expect("a frame");
        assert_eq!(crate::frames::addresses(&headers), (plan.cluster_ip, plan.pod));
        match headers.net.as_ref().expect("an IP header") {
            etherparse::NetHeaders::Ipv4(ip, _) => {
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                assert_eq!(ip.protocol, IpNumber::ICMP);
                let icmp = Icmpv4Slice::from_slice(&run.packet[34..]).expect("ICMP");
                assert_eq!((icmp.type_u8(), icmp.payload()), (0, &b"ping"[..]));
                assert_eq!(icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()));
            }
            etherparse::NetHeaders::Ipv6(ip, _) => {
                let icmp = Icmpv6Slice::from_slice(&run.packet[54..]).expect("ICMPv6");
                assert_eq!((icmp.type_u8(), icmp.payload()), (129, &b"ping"[..]));
                assert!(icmp.is_checksum_valid(ip.source, ip.destination));
            }
            other => panic!("unexpected {other:?}"),
        }
        for dst in [plan.backend, plan.node, plan.balancer] {
            let bytes = request(&plan, dst);
            let run = bench.ingress(&bytes);
            assert_eq!((run.action, run.packet), (CONTINUE, bytes), "{dst}");
        }
    }
}

#[test]
fn what_nobody_has_is_dropped() {
    let mut bench = Bench::new();
    for plan in plans() {
        let request = request(&plan, plan.unallocated);
        // An ICMP message that no host would answer: it is none of those that are known.
        let mut unknown = request.clone();
        let kind = if plan.pod.is_ipv4() { 34 } else { 54 };
        unknown[kind] = 200;
        for frame in [&request, &unknown] {
            let drops = bench.drops(DropReason::UnallocatedAddress);
            assert_eq!(bench.ingress(frame).action, SHOT);
            assert_eq!(bench.egress_of_host(frame).action, SHOT);
            assert_eq!(bench.drops(DropReason::UnallocatedAddress), drops + 2);
        }
    }
}

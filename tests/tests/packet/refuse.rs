//! The answer "nobody here", and silence.

use etherparse::{Icmpv4Slice, Icmpv6Slice, NetHeaders, PacketHeaders, TransportHeader};
use proxy_common::DropReason;

use crate::{
    bench::{BACKEND_PORT, Bench, Plan, REDIRECT, SERVICE_PORT, SHOT, plans},
    bpf,
    frames::{ACK, Flow, RST, SYN, addresses, checked, frame},
};

/// Index of the loopback device.
const LOOPBACK: u32 = 1;

fn refused(plan: &Plan) -> [((std::net::IpAddr, u16), DropReason); 2] {
    [
        ((plan.empty_ip, SERVICE_PORT), DropReason::NoEndpoints),
        ((plan.cluster_ip, 443), DropReason::UnknownPort),
    ]
}

#[test]
fn tcp_is_reset() {
    let mut bench = Bench::new();
    for plan in plans() {
        for (dst, reason) in refused(&plan) {
            let before = bench.drops(reason);
            let flow = Flow::tcp((plan.pod, 40000), dst);
            let run = bench.ingress(&frame(flow, SYN));
            assert_eq!(run.action, REDIRECT);
            assert_eq!(checked(&run.packet), flow.reversed());
            let headers = PacketHeaders::from_ethernet_slice(&run.packet).expect("a frame");
            let Some(TransportHeader::Tcp(tcp)) = headers.transport else { panic!("no TCP") };
            assert!(tcp.rst && tcp.ack && !tcp.syn);
            assert_eq!(tcp.acknowledgment_number, 1001, "the SYN counts (RFC 9293 §3.5.2)");
            assert_eq!(run.packet[..6], [2, 0, 0, 0, 0, 1], "back to the sender's link-layer address");
            assert_eq!(bench.drops(reason), before + 1);
        }
    }
}

#[test]
fn a_segment_in_the_middle_is_reset_at_its_acknowledgement() {
    let mut bench = Bench::new();
    for plan in plans() {
        let flow = Flow::tcp((plan.pod, 40000), (plan.empty_ip, SERVICE_PORT));
        let run = bench.ingress(&frame(flow, ACK));
        assert_eq!(checked(&run.packet), flow.reversed());
        let headers = PacketHeaders::from_ethernet_slice(&run.packet).expect("a frame");
        let Some(TransportHeader::Tcp(tcp)) = headers.transport else { panic!("no TCP") };
        assert!(tcp.rst && !tcp.ack);
        assert_eq!(tcp.sequence_number, 77);
        assert!(headers.payload.slice().is_empty());
    }
}

#[test]
fn a_reset_is_not_answered() {
    let mut bench = Bench::new();
    for plan in plans() {
        let flow = Flow::tcp((plan.pod, 40000), (plan.empty_ip, SERVICE_PORT));
        let mut bytes = frame(flow, ACK);
        let tcp = if plan.pod.is_ipv4() { 14 + 20 } else { 14 + 40 };
        bytes[tcp + 13] |= 0x04;
        assert_eq!(bench.ingress(&bytes).action, SHOT);
    }
}

#[test]
fn udp_and_sctp_are_told_the_port_is_unreachable() {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in [Flow::udp, Flow::sctp] {
            for (dst, reason) in refused(&plan) {
                let before = bench.drops(reason);
                let flow = new((plan.pod, 40000), dst);
                let sent = frame(flow, 0);
                let run = bench.ingress(&sent);
                assert_eq!(run.action, REDIRECT);
                check_unreachable(&run.packet, &sent, flow);
                assert_eq!(bench.drops(reason), before + 1);
            }
        }
    }
}

/// Port unreachable from the frontend to the client, right checksums, the packet's head quoted.
fn check_unreachable(answer: &[u8], sent: &[u8], flow: Flow) {
    let headers = PacketHeaders::from_ethernet_slice(answer).expect("a frame");
    assert_eq!(addresses(&headers), (flow.dst.0, flow.src.0));
    let quoted = match headers.net.as_ref().expect("an IP header") {
        NetHeaders::Ipv4(ip, _) => {
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            let icmp = Icmpv4Slice::from_slice(&answer[14 + 20..]).expect("ICMP");
            assert_eq!((icmp.type_u8(), icmp.code_u8()), (3, 3));
            let sum = icmp.icmp_type().calc_checksum(icmp.payload());
            assert_eq!(icmp.checksum(), sum, "ICMP checksum");
            icmp.payload().to_vec()
        }
        NetHeaders::Ipv6(ip, _) => {
            let icmp = Icmpv6Slice::from_slice(&answer[14 + 40..]).expect("ICMPv6");
            assert_eq!((icmp.type_u8(), icmp.code_u8()), (1, 4));
            assert!(icmp.is_checksum_valid(ip.source, ip.destination), "ICMPv6 checksum");
            icmp.payload().to_vec()
        }
        other => panic!("unexpected {other:?}"),
    };
    let header_len = if flow.src.0.is_ipv4() { 20 } else { 40 };
    assert_eq!(
        quoted[..header_len + 6],
        sent[14..14 + header_len + 6],
        "IP header and ports of what was sent"
    );
    assert!(quoted.len() >= header_len + 8, "eight bytes of the transport (RFC 792)");
}

#[test]
fn source_ranges_admit_whom_they_name() {
    let mut bench = Bench::new();
    for plan in plans() {
        let from = |client| Flow::tcp((client, 40000), (plan.balancer, SERVICE_PORT));
        assert_eq!(bench.enters(from(plan.outside), SYN).dst, (plan.backend, BACKEND_PORT));
        let before = bench.drops(DropReason::SourceNotAllowed);
        let run = bench.ingress(&frame(from(plan.pod), SYN));
        assert_eq!(run.action, SHOT);
        assert_eq!(bench.drops(DropReason::SourceNotAllowed), before + 1);
    }
}

#[test]
fn a_flood_is_not_answered_without_end() {
    let bench = Bench::new();
    let [plan, _] = plans();
    // A reset takes from the budget like every packet to nobody, but is not answered, so it stays what
    // it is and the kernel can repeat it: more than a second's budget in a fraction of one.
    let reset = frame(Flow::tcp((plan.pod, 40000), (plan.empty_ip, SERVICE_PORT)), RST);
    let program = bench.datapath.program("shunt_in").expect("a program");
    bpf::run(program, bpf::Kind::Tc, &reset, LOOPBACK, 200_000).expect("the kernel takes the frame");
    let (refused, limited) =
        (bench.drops(DropReason::NoEndpoints), bench.drops(DropReason::RejectRateLimited));
    assert_eq!(refused + limited, 200_000);
    assert!(refused >= 10_000 && limited > 0, "{refused} within the budget, {limited} beyond");
}

#[test]
fn silence_where_policy_says_so() {
    let mut bench = Bench::new();
    for plan in plans() {
        for (dst, reason) in [
            (plan.local_only_ip, DropReason::NoLocalEndpoint),
            (plan.unallocated, DropReason::UnallocatedAddress),
        ] {
            let before = bench.drops(reason);
            let run = bench.ingress(&frame(Flow::tcp((plan.pod, 40000), (dst, SERVICE_PORT)), SYN));
            assert_eq!(run.action, SHOT, "{dst}");
            assert_eq!(bench.drops(reason), before + 1);
        }
    }
}

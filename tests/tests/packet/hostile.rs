//! Packets as an attacker would write them: what is not understood wholly leaves as it came.

use anyhow::{Result, ensure};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use proxy_common::{DropReason, packet::MAX_TRANSPORT};

use crate::{
    bench::{BACKEND_PORT, Bench, CONTINUE, NODE_PORT, Plan, SERVICE_PORT, plans},
    frames::{ACK, Flow, SYN, checked, ethernet, frame, ipv6, transport},
    uplink::on_a_node,
};

fn to_service(plan: &Plan) -> [Flow; 3] {
    [Flow::tcp, Flow::udp, Flow::sctp].map(|new| new((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT)))
}

/// Under test run the kernel wants at least Ethernet and IP header.
fn shortest(frame: &[u8]) -> usize {
    if frame[12..14] == [0x08, 0x00] { 14 + 20 } else { 14 + 40 }
}

fn assert_untouched(bench: &mut Bench, bytes: &[u8], what: &str) {
    for run in [bench.ingress(bytes), bench.egress(bytes)] {
        assert_eq!((run.action, run.packet.as_slice()), (CONTINUE, bytes), "{what}");
    }
}

#[test]
fn headers_cut_off_anywhere() {
    let mut bench = Bench::new();
    for plan in plans() {
        for flow in to_service(&plan) {
            let whole = frame(flow, SYN);
            for len in shortest(&whole)..whole.len() {
                assert_untouched(&mut bench, &whole[..len], &format!("{flow:?} cut to {len}"));
            }
        }
    }
}

#[test]
fn lengths_that_lie() {
    let mut bench = Bench::new();
    let [v4, v6] = plans();
    for flow in to_service(&v4) {
        let mut short = frame(flow, ACK);
        short[16..18].copy_from_slice(&21u16.to_be_bytes());
        assert_untouched(&mut bench, &short, "total length ends inside the transport header");
        let mut long = frame(flow, ACK);
        long[16..18].copy_from_slice(&1500u16.to_be_bytes());
        assert_untouched(&mut bench, &long, "total length beyond the packet");
        let mut header = frame(flow, ACK);
        header[14] = 0x44;
        assert_untouched(&mut bench, &header, "IPv4 header of 16 bytes");
        let mut version = frame(flow, ACK);
        version[14] = 0x65;
        assert_untouched(&mut bench, &version, "version 6 under the EtherType of 4");
    }
    for flow in to_service(&v6) {
        let mut short = frame(flow, ACK);
        short[18..20].copy_from_slice(&5u16.to_be_bytes());
        assert_untouched(&mut bench, &short, "payload length ends inside the transport header");
        let mut long = frame(flow, ACK);
        long[18..20].copy_from_slice(&1500u16.to_be_bytes());
        assert_untouched(&mut bench, &long, "payload length beyond the packet");
    }
    for (plan, at) in [(v4, 14 + 20), (v6, 14 + 40)] {
        let [tcp, udp, _] = to_service(&plan);
        let mut offset = frame(tcp, ACK);
        offset[at + 12] = 0x40;
        assert_untouched(&mut bench, &offset, "TCP header of 16 bytes");
        offset[at + 12] = 0xf0;
        assert_untouched(&mut bench, &offset, "TCP header beyond the packet");
        for len in [0u16, 7, 1400] {
            let mut datagram = frame(udp, 0);
            datagram[at + 4..at + 6].copy_from_slice(&len.to_be_bytes());
            assert_untouched(&mut bench, &datagram, &format!("UDP length {len}"));
        }
    }
}

#[test]
fn ip_options_are_stepped_over() {
    let mut bench = Bench::new();
    let [plan, _] = plans();
    for flow in to_service(&plan) {
        let mut bytes = frame(flow, SYN);
        bytes.splice(34..34, [1, 1, 1, 1, 1, 1, 1, 0]);
        bytes[14] = 0x47;
        let total = (bytes.len() - 14) as u16;
        bytes[16..18].copy_from_slice(&total.to_be_bytes());
        bytes[24..26].fill(0);
        let sum = !proxy_common::checksum::fold(proxy_common::checksum::sum(&bytes[14..42], 0));
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        let run = bench.ingress(&bytes);
        assert_eq!(checked(&run.packet).dst, (plan.backend, BACKEND_PORT));
        assert_eq!(run.packet[34..42], bytes[34..42]);
    }
}

#[test]
fn extension_headers_are_stepped_over() {
    let mut bench = Bench::new();
    let [_, plan] = plans();
    for flow in to_service(&plan) {
        let hop_by_hop = [60, 0, 1, 4, 0, 0, 0, 0];
        let destination = [flow.proto, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let bytes = with_extensions(flow, 0, &[&hop_by_hop[..], &destination[..]].concat());
        let run = bench.ingress(&bytes);
        assert_eq!(checked(&run.packet).dst, (plan.backend, BACKEND_PORT), "{flow:?}");
        let endless = with_extensions(flow, 60, &[60, 0, 1, 4, 0, 0, 0, 0].repeat(12));
        assert_untouched(&mut bench, &endless, "more extension headers than anyone needs");
    }
}

/// Whatever is taken for ours has all that is rewritten within reach: nothing is dropped half done.
#[test]
fn headers_that_are_too_far_in_are_left_alone() -> Result<()> {
    on_a_node(|node| {
        let [_, plan] = plans();
        let (client, node_port) = ((plan.outside, 40000), (plan.node, NODE_PORT));
        for new in [Flow::tcp, Flow::udp, Flow::sctp] {
            let flow = new(client, node_port);
            let farthest = (MAX_TRANSPORT - 14 - 40) / 8;
            for eights in farthest - 3..=farthest + 5 {
                let mut extension = vec![0; eights * 8];
                (extension[0], extension[1]) = (flow.proto, (eights - 1) as u8);
                let bytes = with_extensions(flow, 0, &extension);
                for run in [node.xdp(&bytes)?, node.tc(&bytes)?] {
                    let is_left = run.packet == bytes;
                    let what = format!("{flow:?} after {eights} eights of extensions: {}", run.verdict);
                    ensure!(is_left == (eights > farthest), "{what}");
                    ensure!(is_left || checked(&run.packet).dst == (plan.backend, BACKEND_PORT), "{what}");
                }
                ensure!(node.bench.drops(DropReason::RewriteFailed) == 0, "{flow:?}: a half-done rewrite");
            }
        }
        Ok(())
    })
}

fn with_extensions(flow: Flow, first: u8, extensions: &[u8]) -> Vec<u8> {
    let (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) = (flow.src.0, flow.dst.0) else {
        panic!("IPv6 only")
    };
    let transport = transport(flow, SYN, b"");
    let mut ip = ipv6(flow, src.octets(), dst.octets(), extensions.len() + transport.len());
    ip.next_header = etherparse::IpNumber(first);
    let mut bytes = ethernet(flow.src.0);
    ip.write(&mut bytes).expect("to memory");
    bytes.extend(extensions);
    bytes.extend(transport);
    bytes
}

#[test]
fn mutated_packets_crash_nothing_and_keep_what_is_not_understood() {
    let mut bench = Bench::new();
    let flows: Vec<Flow> = plans()
        .iter()
        .flat_map(|p| to_service(p).into_iter().chain([Flow::tcp((p.outside, 4000), (p.node, NODE_PORT))]))
        .collect();
    let mutation = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let cut = prop::option::of(any::<prop::sample::Index>());
    let strategy = (0..flows.len(), any::<u8>(), mutation, cut);
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 4000, failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let bench = std::cell::RefCell::new(&mut bench);
    runner
        .run(&strategy, |(flow, flags, mutation, cut)| {
            let mut bytes = frame(flows[flow], flags);
            for (at, value) in mutation {
                // Not the EtherType: the kernel itself refuses what is no IP under test run.
                let at = 14 + at.index(bytes.len() - 14);
                bytes[at] = value;
            }
            if let Some(cut) = cut {
                let shortest = shortest(&bytes);
                bytes.truncate(shortest + cut.index(bytes.len() - shortest));
            }
            let understood = etherparse::PacketHeaders::from_ethernet_slice(&bytes).is_ok();
            let mut bench = bench.borrow_mut();
            for run in [bench.ingress(&bytes), bench.egress(&bytes)] {
                if !understood {
                    prop_assert_eq!(run.action, CONTINUE);
                    prop_assert_eq!(&run.packet, &bytes);
                }
                if run.action == CONTINUE {
                    prop_assert_eq!(run.packet.len(), bytes.len());
                }
            }
            Ok(())
        })
        .expect("every mutation");
}

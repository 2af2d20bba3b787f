//! Packets in fragments: only the first has ports, the others do as it did.

use std::{mem::offset_of, net::IpAddr};

use anyhow::Result;
use aya::maps::{HashMap, Map, MapData};
use proxy_common::{
    DropReason, checksum,
    maps::{
        fragments::{HELD_CAPACITY, HeldFragment, HeldKey},
        settings::flags::TAKEOVER,
    },
    proto,
};
use tests::netns::Namespace;

use crate::{
    bench::{
        BACKEND_PORT, Bench, CONTINUE, NODE_PORT, Plan, REDIRECT, SERVICE_PORT, SHOT, SNAT_PORTS, l3_source,
        plans,
    },
    frames::{ACK, Flow, SYN, checked, ethernet, transport, with_ip},
};

/// Bytes of transport in a fragment.
const PART: usize = 1000;

/// The fragments of a packet of `flow`, in their order.
pub(crate) fn fragments(flow: Flow, id: u16, payload: &[u8]) -> Vec<Vec<u8>> {
    let whole = transport(flow, ACK, payload);
    let parts = whole.chunks(PART);
    let count = parts.len();
    parts.enumerate().map(|(i, part)| fragment(flow, id, i * PART / 8, i + 1 < count, part)).collect()
}

/// One fragment: `offset` in units of eight bytes.
fn fragment(flow: Flow, id: u16, offset: usize, more: bool, part: &[u8]) -> Vec<u8> {
    if flow.src.0.is_ipv4() {
        let mut bytes = with_ip(flow, part);
        bytes[18..20].copy_from_slice(&id.to_be_bytes());
        let field = offset as u16 | if more { 0x2000 } else { 0 };
        bytes[20..22].copy_from_slice(&field.to_be_bytes());
        bytes[24..26].fill(0);
        let sum = !checksum::fold(checksum::sum(&bytes[14..34], 0));
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        return bytes;
    }
    let field = ((offset as u16) << 3 | u16::from(more)).to_be_bytes();
    let mut header = vec![flow.proto, 0, field[0], field[1], 0, 0];
    header.extend(id.to_be_bytes());
    header.extend(part);
    let mut bytes = ethernet(flow.src.0);
    bytes.extend(&with_ip(Flow { proto: 44, ..flow }, &header)[14..]);
    bytes
}

/// Its addresses, as they stand there.
pub(crate) fn addresses(frame: &[u8]) -> Vec<u8> {
    if frame[12..14] == [0x08, 0x00] { frame[26..34].to_vec() } else { frame[22..54].to_vec() }
}

/// The packet that the fragments are, whose checksums must all be right.
fn reassembled(frames: &[Vec<u8>]) -> Flow {
    let v4 = frames[0][12..14] == [0x08, 0x00];
    let (at, proto) = if v4 { (34, frames[0][23]) } else { (62, frames[0][54]) };
    let mut whole = Vec::new();
    for frame in frames {
        assert_eq!(addresses(frame), addresses(&frames[0]), "one pair of addresses");
        if v4 {
            assert_eq!(checksum::fold(checksum::sum(&frame[14..34], 0)), 0xffff, "IPv4 header checksum");
        }
        whole.extend(&frame[at..]);
    }
    let address = |at: usize| -> IpAddr {
        if v4 {
            <[u8; 4]>::try_from(&frames[0][at..at + 4]).expect("four bytes").into()
        } else {
            <[u8; 16]>::try_from(&frames[0][at..at + 16]).expect("sixteen bytes").into()
        }
    };
    let (src, dst) = if v4 { (address(26), address(30)) } else { (address(22), address(38)) };
    checked(&with_ip(Flow { proto, src: (src, 0), dst: (dst, 0) }, &whole))
}

type Hook = fn(&mut Bench, &[u8]) -> proxy_userspace::kernel::Run;
const INGRESS: Hook = Bench::ingress;
const EGRESS: Hook = Bench::egress;

/// Every fragment through the hook; all go on.
fn pass(bench: &mut Bench, hook: Hook, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let run = |frame: &Vec<u8>| {
        let run = hook(bench, frame);
        assert_eq!(run.action, CONTINUE);
        run.packet
    };
    frames.iter().map(run).collect()
}

/// Runs in a network of its own: fragments that are let go come in by its loopback device.
fn alone(test: impl FnOnce(&mut Bench) + Send) -> Result<()> {
    Namespace::create("packet")?.run(|| {
        test(&mut Bench::new());
        Ok(())
    })
}

fn to_service(plan: &Plan) -> Flow {
    Flow::udp((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT))
}

/// Identifications of the packets of which fragments are held.
fn held_ids(bench: &Bench) -> Vec<u32> {
    type Key = [u8; size_of::<HeldKey>()];
    const ID: usize = offset_of!(HeldKey, id);
    let map = MapData::from_pin(bench.pins.map("held_fragments")).expect("a pin");
    let held = Map::from_map_data(map).expect("a known type");
    let held = HashMap::<_, Key, [u8; size_of::<HeldFragment>()]>::try_from(held).expect("a hash");
    let id = |key: Key| u32::from_ne_bytes(key[ID..ID + 4].try_into().expect("four bytes"));
    let mut ids: Vec<_> = held.keys().map(|key| id(key.expect("a row"))).collect();
    ids.sort_unstable();
    ids
}

pub(crate) const PAYLOAD: [u8; 3500] = [7; 3500];

#[test]
fn in_order() -> Result<()> {
    alone(|bench| {
        for plan in plans() {
            for new in [Flow::udp, Flow::tcp] {
                let client = (plan.outside, 40000);
                let original = new(client, (plan.node, NODE_PORT));
                let opened = bench.enters(original, SYN);
                bench.leaves(opened, SYN);
                let inside = pass(bench, INGRESS, &fragments(original, 1, &PAYLOAD));
                assert_eq!(reassembled(&inside), new(client, (plan.backend, BACKEND_PORT)));
                let wire = reassembled(&pass(bench, EGRESS, &inside));
                assert_eq!((wire.src.0, wire.dst), (plan.node, (plan.backend, BACKEND_PORT)));
                assert!(SNAT_PORTS.contains(&wire.src.1));
                let back = pass(bench, INGRESS, &fragments(wire.reversed(), 2, &PAYLOAD));
                let reply = pass(bench, EGRESS, &back);
                assert_eq!(reassembled(&reply), original.reversed());
            }
        }
    })
}

#[test]
fn by_devices_without_ethernet() -> Result<()> {
    alone(|bench| {
        for plan in plans() {
            let original = Flow::udp((l3_source(plan.pod), 40000), (plan.node, NODE_PORT));
            let frames = fragments(original, 1, &PAYLOAD);
            assert_eq!(bench.ingress_l3(&frames[2]).action, SHOT, "held");
            assert_eq!(bench.ingress_l3(&frames[0]).action, SHOT, "both begin anew");
            let inside = pass(bench, Bench::ingress_l3, &frames);
            assert_eq!(reassembled(&inside).dst, (plan.backend, BACKEND_PORT));
            let wire = reassembled(&pass(bench, Bench::egress_l3, &inside));
            assert_eq!((wire.src.0, wire.dst), (plan.node, (plan.backend, BACKEND_PORT)));
        }
    })
}

#[test]
fn datagrams_between_each_other_and_fragments_twice() -> Result<()> {
    alone(|bench| {
        for plan in plans() {
            let other = Flow::udp((plan.pod, 40001), (plan.other_ip, SERVICE_PORT));
            let mut inside = [Vec::new(), Vec::new()];
            for (a, b) in fragments(to_service(&plan), 1, &PAYLOAD).iter().zip(fragments(other, 2, &PAYLOAD))
            {
                for (frame, inside) in [a, &b].into_iter().zip(&mut inside) {
                    let [once, twice] = [(); 2].map(|()| bench.ingress(frame));
                    assert_eq!((once.action, &once.packet), (CONTINUE, &twice.packet));
                    inside.push(once.packet);
                }
            }
            for (frames, port) in inside.iter().zip([40000, 40001]) {
                let to_backend = Flow::udp((plan.pod, port), (plan.backend, BACKEND_PORT));
                assert_eq!(reassembled(frames), to_backend);
            }
        }
    })
}

#[test]
fn a_fragment_without_its_first_is_held_until_that_comes() -> Result<()> {
    alone(|bench| {
        for plan in plans() {
            let masked = Flow::udp((plan.outside, 40000), (plan.node, NODE_PORT));
            for flow in [to_service(&plan), masked] {
                let frames = fragments(flow, 1, &PAYLOAD);
                assert_eq!(bench.ingress(&frames[2]).action, SHOT, "held");
                assert_eq!(bench.ingress(&frames[0]).action, SHOT, "both begin anew");
                let inside = pass(bench, INGRESS, &frames);
                assert_eq!(reassembled(&inside).dst, (plan.backend, BACKEND_PORT));
            }
        }
    })
}

#[test]
fn replies_are_held_too() -> Result<()> {
    alone(|bench| {
        for plan in plans() {
            let inside = reassembled(&pass(bench, INGRESS, &fragments(to_service(&plan), 1, &PAYLOAD)));
            let reply = fragments(inside.reversed(), 2, &PAYLOAD);
            assert_eq!(pass(bench, INGRESS, &reply), reply);
            assert_eq!(bench.egress(&reply[1]).action, SHOT, "held");
            assert_eq!(bench.egress(&reply[0]).action, SHOT, "both begin anew");
            assert_eq!(reassembled(&pass(bench, EGRESS, &reply)), to_service(&plan).reversed());
        }
    })
}

/// None waits for the first one, which is not translated.
#[test]
fn what_is_left_to_netfilter_goes_on_in_order() -> Result<()> {
    alone(|bench| {
        bench.set_flag(TAKEOVER, true);
        for plan in plans() {
            let frames = fragments(to_service(&plan), 1, &PAYLOAD);
            assert_eq!(pass(bench, INGRESS, &frames), frames);
        }
    })
}

#[test]
fn what_is_not_ours_is_left_alone() -> Result<()> {
    alone(|bench| {
        for plan in plans() {
            let strange = Flow::udp((plan.pod, 40000), (plan.stranger, 53));
            let to_node = Flow::udp((plan.outside, 40000), (plan.node, 111));
            for flow in [strange, to_node] {
                let frames = fragments(flow, 1, &PAYLOAD);
                assert_eq!(pass(bench, INGRESS, &frames), frames);
                assert_eq!(pass(bench, EGRESS, &frames), frames);
            }
            let lone = fragments(strange, 2, &PAYLOAD);
            assert_eq!(pass(bench, INGRESS, &lone[1..]), lone[1..]);
            let proto = if plan.pod.is_ipv4() { proto::ICMP } else { proto::ICMPV6 };
            let ping = Flow { proto, src: (plan.pod, 0), dst: (plan.cluster_ip, 0) };
            for (offset, more) in [(100, true), (0, true), (100, false)] {
                let bytes = fragment(ping, 3, offset, more, &[8; 800]);
                assert_eq!(pass(bench, INGRESS, std::slice::from_ref(&bytes)), [bytes]);
            }
        }
    })
}

#[test]
fn a_first_fragment_too_short_for_its_header_is_left_to_the_stack_with_the_others() -> Result<()> {
    alone(|bench| {
        for plan in plans() {
            let flow = Flow::tcp((plan.outside, 40000), (plan.node, NODE_PORT));
            let whole = transport(flow, SYN, b"");
            let frames = [fragment(flow, 1, 0, true, &whole[..8]), fragment(flow, 1, 1, false, &whole[8..])];
            assert_eq!(pass(bench, INGRESS, &frames), frames);
        }
    })
}

#[test]
fn a_refused_datagram_is_refused_at_its_first_fragment() -> Result<()> {
    alone(|bench| {
        for plan in plans() {
            let flow = Flow::udp((plan.pod, 40000), (plan.empty_ip, SERVICE_PORT));
            let frames = fragments(flow, 1, &PAYLOAD);
            let run = bench.ingress(&frames[0]);
            assert_eq!(run.action, REDIRECT);
            let (icmp, pseudo, kind, headers) = match plan.pod {
                IpAddr::V4(_) => (34, 0, [3, 3], 28),
                IpAddr::V6(_) => {
                    let len = (run.packet.len() - 54) as u32;
                    (54, checksum::sum(&run.packet[22..54], len + u32::from(proto::ICMPV6)), [1, 4], 56)
                }
            };
            assert_eq!(run.packet[icmp..icmp + 2], kind);
            assert_eq!(checksum::fold(checksum::sum(&run.packet[icmp..], pseudo)), 0xffff);
            // All but the UDP checksum, its last two bytes.
            assert_eq!(run.packet.len(), icmp + 8 + headers);
            assert_eq!(run.packet[icmp + 8..][..headers - 2], frames[0][14..][..headers - 2]);
        }
    })
}

#[test]
fn sctp_in_fragments_keeps_its_ports_or_is_dropped() -> Result<()> {
    alone(|bench| {
        for plan in plans() {
            let flow = Flow::sctp((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
            bench.enters(flow, SYN);
            let before = bench.drops(DropReason::FragmentedSctp);
            assert_eq!(bench.ingress(&fragments(flow, 1, &PAYLOAD)[0]).action, SHOT);
            assert_eq!(bench.drops(DropReason::FragmentedSctp), before + 1);
        }
    })
}

#[test]
fn a_flood_of_lone_fragments_harms_nobody() -> Result<()> {
    alone(|bench| {
        for plan in plans() {
            for id in 0..3000 {
                let flow = Flow::udp((plan.stranger, 40000), (plan.cluster_ip, SERVICE_PORT));
                let action = bench.ingress(&fragment(flow, id, 100, true, &[1; PART])).action;
                assert!(action == SHOT || action == CONTINUE, "{action}");
            }
            let inside = pass(bench, INGRESS, &fragments(to_service(&plan), 1, &PAYLOAD));
            assert_eq!(reassembled(&inside).dst, (plan.backend, BACKEND_PORT));
            assert!(held_ids(bench).into_iter().eq(3000 - HELD_CAPACITY..3000), "the newest are held");
            let frames = fragments(to_service(&plan), 2, &PAYLOAD);
            assert_eq!(bench.ingress(&frames[1]).action, SHOT, "held all the same");
        }
    })
}

#[test]
fn what_cannot_be_held_is_left_to_the_stack_and_counted() -> Result<()> {
    alone(|bench| {
        for plan in plans() {
            let before = bench.drops(DropReason::FragmentNotHeld);
            let frames: Vec<_> =
                (1..50).map(|i| fragment(to_service(&plan), 9, i * 8, true, &[1; 64])).collect();
            for frame in &frames[..48] {
                assert_eq!(bench.ingress(frame).action, SHOT);
            }
            assert_eq!(pass(bench, INGRESS, &frames[48..]), frames[48..]);
            assert_eq!(bench.drops(DropReason::FragmentNotHeld), before + 1);
        }
    })
}

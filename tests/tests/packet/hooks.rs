//! The same packets through both hooks: what the driver's hook sends on is what the two tc
//! programs make of it, with the link-layer addresses of the route and one hop less; what it
//! leaves alone goes up byte for byte.

use std::{collections::HashSet, net::IpAddr};

use anyhow::{Result, ensure};
use proxy_common::checksum;

use crate::{
    bench::{BACKEND_PORT, NODE_PORT, Plan, SERVICE_PORT, plans},
    bpf::Kind,
    frames::{ACK, Flow, SYN, checked, frame},
    uplink::{MAC, NEIGHBOUR, Node, Uplink, on_a_node},
};

const XDP_PASS: i32 = 2;
const XDP_TX: i32 = 3;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// Sent on, to this destination. A masqueraded source is anything of the node's.
    Sent { from: IpAddr, to: (IpAddr, u16) },
    /// Left to the tc programs and the stack.
    Up,
}

/// A line of the table.
struct Case {
    what: &'static str,
    flow: Flow,
    expected: Expected,
}

fn cases(plan: &Plan, new: fn((IpAddr, u16), (IpAddr, u16)) -> Flow, port: u16) -> Vec<Case> {
    let (outside, pod, node) = ((plan.outside, port), (plan.pod, port), plan.node);
    let backend = (plan.backend, BACKEND_PORT);
    let case = |what, from, to, expected| Case { what, flow: new(from, to), expected };
    let sent = |from| Expected::Sent { from, to: backend };
    let up = Expected::Up;
    vec![
        case("outside to a NodePort", outside, (node, NODE_PORT), sent(node)),
        case("outside to a load balancer", outside, (plan.balancer, SERVICE_PORT), sent(node)),
        case("a pod to a ClusterIP", pod, (plan.cluster_ip, SERVICE_PORT), sent(plan.pod)),
        case("outside to a ClusterIP", outside, (plan.other_ip, SERVICE_PORT), sent(node)),
        case("the node's own port", outside, (node, 22), up),
        case("nobody's service", pod, (plan.stranger, SERVICE_PORT), up),
        case("a service without endpoints", pod, (plan.empty_ip, SERVICE_PORT), up),
        case("a port the service lacks", pod, (plan.cluster_ip, 443), up),
        case("endpoints elsewhere, policy Local", pod, (plan.local_only_ip, SERVICE_PORT), up),
        case("no service's address", pod, (plan.unallocated, SERVICE_PORT), up),
        case("a client out of range", pod, (plan.balancer, SERVICE_PORT), up),
    ]
}

type Transport = (u8, fn((IpAddr, u16), (IpAddr, u16)) -> Flow);
const TRANSPORTS: [Transport; 3] = [(6, Flow::tcp), (17, Flow::udp), (132, Flow::sctp)];

/// The tc programs' packet as the driver's hook sends it.
fn sent_on(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[..6].copy_from_slice(&NEIGHBOUR);
    packet[6..12].copy_from_slice(&MAC);
    if packet[14] >> 4 == 6 {
        packet[14 + 7] -= 1;
        return packet;
    }
    packet[14 + 8] -= 1;
    packet[14 + 10..14 + 12].fill(0);
    let sum = !checksum::fold(checksum::sum(&packet[14..34], 0));
    packet[14 + 10..14 + 12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Both hooks take the packet, one after the other, and must agree. Returns the packet sent.
fn agree(node: &Node, bytes: &[u8], xdp_first: bool) -> Result<Vec<u8>> {
    let early = if xdp_first { Some(node.xdp(bytes)?) } else { None };
    let tc = node.tc(bytes)?;
    ensure!(tc.verdict == Kind::Tc.pass(), "tc: {}", tc.verdict);
    let xdp = if let Some(run) = early { run } else { node.xdp(bytes)? };
    ensure!(xdp.verdict == XDP_TX, "XDP: {}", xdp.verdict);
    ensure!(xdp.packet == sent_on(&tc.packet), "\nXDP {:02x?}\ntc  {:02x?}", xdp.packet, tc.packet);
    Ok(xdp.packet)
}

fn goes_up(node: &Node, bytes: &[u8], what: &str) -> Result<()> {
    let drops = node.bench.all_drops();
    let run = node.xdp(bytes)?;
    ensure!(run.verdict == XDP_PASS, "{what}: XDP {}", run.verdict);
    ensure!(run.packet == bytes, "{what}: changed");
    ensure!(node.bench.all_drops() == drops, "{what}: counted as dropped");
    Ok(())
}

#[test]
fn either_hook_takes_any_packet_of_a_connection() -> Result<()> {
    on_a_node(|node| {
        for plan in plans() {
            for (proto, new) in TRANSPORTS {
                for (round, xdp_first) in [false, true].into_iter().enumerate() {
                    for case in cases(&plan, new, 40000 + round as u16) {
                        let what = format!("{} {proto} {xdp_first}: {:?}", case.what, case.flow);
                        check(node, &case, xdp_first).map_err(|error| error.context(what))?;
                    }
                }
            }
        }
        Ok(())
    })
}

fn check(node: &Node, case: &Case, xdp_first: bool) -> Result<()> {
    let first = frame(case.flow, SYN);
    let Expected::Sent { from, to } = case.expected else {
        return goes_up(node, &first, case.what);
    };
    let sent = checked(&agree(node, &first, xdp_first)?);
    ensure!((sent.src.0, sent.dst) == (from, to), "{sent:?}");
    let later = checked(&agree(node, &frame(case.flow, ACK), !xdp_first)?);
    ensure!(later == sent, "later {later:?}, first {sent:?}");
    let answer = frame(sent.reversed(), SYN | ACK);
    if from == case.flow.src.0 {
        // Nothing about it is ours before it has been routed.
        return goes_up(node, &answer, "reply to a client that is not masqueraded");
    }
    let reply = checked(&agree(node, &answer, xdp_first)?);
    ensure!(reply == case.flow.reversed(), "reply {reply:?}");
    Ok(())
}

#[test]
fn what_the_driver_cannot_finish_goes_up() -> Result<()> {
    on_a_node(|node| {
        for plan in plans() {
            let flow = Flow::tcp((plan.outside, 40000), (plan.node, NODE_PORT));
            let good = frame(flow, SYN);
            agree(node, &good, true)?;
            for (what, bytes) in spoilt(&good) {
                goes_up(node, &bytes, what)?;
            }
            for len in 14..good.len() {
                goes_up(node, &good[..len], "cut off")?;
            }
        }
        Ok(())
    })
}

/// The frame in ways that are not for the driver's hook.
fn spoilt(good: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let change = |at: usize, bytes: &[u8]| {
        let mut frame = good.to_vec();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let hops = if good[14] >> 4 == 6 { 14 + 7 } else { 14 + 8 };
    let mut all = vec![
        ("the last hop", change(hops, &[1])),
        ("no hop", change(hops, &[0])),
        ("another protocol", change(12, &[0x88, 0xcc])),
        ("another node's frame", change(0, &[2, 0, 0, 0, 0, 0x77])),
        ("a frame to all", change(0, &[0xff; 6])),
        ("a tagged frame for an untagged device", tagged(good, 5)),
        ("two tags", tagged(&tagged(good, 5), 5)),
    ];
    if hops == 14 + 8 {
        all.push(("a fragment", change(14 + 6, &[0x20, 0])));
        all.push(("a later fragment", change(14 + 6, &[0, 5])));
    }
    all
}

fn tagged(frame: &[u8], id: u16) -> Vec<u8> {
    let mut bytes = frame[..12].to_vec();
    bytes.extend([0x81, 0x00]);
    // With a priority, which stays.
    bytes.extend((0xa000 | id).to_be_bytes());
    bytes.extend(&frame[12..]);
    bytes
}

/// The route leads out by a VLAN device: the tag of the frame becomes that device's.
#[test]
fn a_tag_is_exchanged() -> Result<()> {
    on_a_node(|node| {
        let ifindex = node.uplink.ifindex;
        let vlan = proxy_common::maps::devices::Device { vlan: 7, parent: ifindex, ..Uplink::device() };
        node.bench.maps.replace_devices(&[(ifindex, vlan)])?;
        for plan in plans() {
            for (_, new) in TRANSPORTS {
                for (port, xdp_first) in [(40000, false), (40001, true)] {
                    let bytes = frame(new((plan.outside, port), (plan.node, NODE_PORT)), SYN);
                    let early = if xdp_first { Some(node.xdp(&tagged(&bytes, 5))?) } else { None };
                    let tc = node.tc(&bytes)?;
                    let xdp = if let Some(run) = early { run } else { node.xdp(&tagged(&bytes, 5))? };
                    ensure!(xdp.verdict == XDP_TX, "{}", xdp.verdict);
                    ensure!(xdp.packet == tagged(&sent_on(&tc.packet), 7), "{:02x?}", xdp.packet);
                }
            }
        }
        Ok(())
    })
}

/// Connections of one client, opened by the driver's hook and by the tc programs in turn.
#[test]
fn a_client_sticks_to_a_backend_whoever_opens_its_connections() -> Result<()> {
    on_a_node(|node| {
        for plan in plans() {
            let mut backends = HashSet::new();
            for port in 40000..40016 {
                let flow = Flow::tcp((plan.outside, port), (plan.sticky_ip, SERVICE_PORT));
                let sent = agree(node, &frame(flow, SYN), port % 2 == 0)?;
                backends.insert(checked(&sent).dst);
            }
            ensure!(backends.len() == 1, "{backends:?}");
        }
        Ok(())
    })
}

#[test]
fn an_unknown_neighbour_is_the_stacks_business() -> Result<()> {
    on_a_node(|node| {
        for plan in plans() {
            let flow = Flow::tcp((plan.outside, 40000), (plan.node, NODE_PORT));
            let bytes = frame(flow, SYN);
            let sent = agree(node, &bytes, true)?;
            let (gateway, family) =
                if plan.node.is_ipv4() { ("192.168.0.9", "-4") } else { ("2001:db8::9", "-6") };
            let ip = |arguments: &[&str]| {
                let status = std::process::Command::new("ip").arg(family).args(arguments).status()?;
                ensure!(status.success(), "ip {arguments:?}");
                Ok(())
            };
            ip(&["neighbour", "del", gateway, "dev", "uplink"])?;
            goes_up(node, &bytes, "no neighbour")?;
            ip(&[
                "neighbour",
                "add",
                gateway,
                "lladdr",
                "02:00:00:00:00:09",
                "dev",
                "uplink",
                "nud",
                "permanent",
            ])?;
            ensure!(agree(node, &bytes, true)? == sent, "known again");
        }
        Ok(())
    })
}

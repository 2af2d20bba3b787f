//! Connections of which a driver remembers what their frames become, and where they go.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use proxy_common::maps::{
    backends::Backend,
    conntrack::{CtEntry, Role},
    counters::Traffic,
};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore},
    kernel::KernelAddr,
};

use crate::{
    bench::{BACKEND_ID, BACKEND_PORT, NODE_PORT, Plan, plans},
    bpf::Run,
    connection::forget,
    frames::{ACK, Flow, SYN, checked, frame, transport, with_ip},
    uplink::{MAC, NEIGHBOUR, Node, Uplink, on_a_node},
};

const XDP_PASS: i32 = 2;
const XDP_TX: i32 = 3;

const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
/// What is remembered is good for 64 ticks of at most 10 ms.
const EPOCH: Duration = Duration::from_millis(640);

type NewFlow = fn((IpAddr, u16), (IpAddr, u16)) -> Flow;

/// A masqueraded connection to another node, as it arrives and as it leaves.
struct Forwarded {
    arrives: Flow,
    wire: Flow,
}

impl Forwarded {
    fn open(node: &Node, plan: &Plan, new: NewFlow) -> Result<Self> {
        let arrives = new((plan.outside, 40000), (plan.node, NODE_PORT));
        let wire = checked(&sent(node.xdp(&frame(arrives, SYN))?)?);
        let opened = Self { arrives, wire };
        sent(node.xdp(&frame(wire.reversed(), SYN | ACK))?)?;
        sent(node.xdp(&frame(arrives, ACK))?)?;
        sent(node.xdp(&frame(wire.reversed(), ACK))?)?;
        Ok(opened)
    }

    /// Both ways, twice: the driver has to ask, then it remembers.
    fn exchange(&self, node: &Node) -> Result<()> {
        for _ in 0..2 {
            ensure!(checked(&sent(node.xdp(&frame(self.arrives, ACK))?)?) == self.wire);
            let reply = checked(&sent(node.xdp(&frame(self.wire.reversed(), ACK))?)?);
            ensure!(reply == self.arrives.reversed(), "{reply:?}");
        }
        Ok(())
    }
}

fn sent(run: Run) -> Result<Vec<u8>> {
    ensure!(run.verdict == XDP_TX, "verdict {}", run.verdict);
    Ok(run.packet)
}

fn next_hop(bytes: &[u8]) -> [u8; 6] {
    bytes[..6].try_into().expect("a frame")
}

/// Gives the next hop another link-layer address.
fn move_neighbour(node: &Node, plan: &Plan) -> Result<()> {
    let replace = "lladdr 02:00:00:00:00:07 dev uplink nud permanent";
    node.namespace.ip(&format!("neighbour replace {} {replace}", node.neighbour(plan)))
}

/// TCP and UDP in both families, each on a node of its own.
fn each_connection(test: impl Fn(&mut Node, &Plan, &Forwarded) -> Result<()> + Sync) -> Result<()> {
    for plan in plans() {
        for new in [Flow::tcp as NewFlow, Flow::udp] {
            on_a_node(|node| {
                let connection = Forwarded::open(node, &plan, new)?;
                connection.exchange(node)?;
                test(node, &plan, &connection)
            })?;
        }
    }
    Ok(())
}

/// Says that routes, neighbours or devices have changed, as the agent does.
fn tell(node: &mut Node) -> Result<()> {
    Ok(node.bench.maps.replace_devices(&[(node.uplink.ifindex, Uplink::device())])?)
}

fn carried(node: &mut Node) -> Result<Traffic> {
    fn add<A: KernelAddr>(maps: &impl FamilyMaps<A>, sum: &mut Traffic) -> Result<()> {
        Ok(maps.each_conntrack(&mut |_, row: &CtEntry<A>| *sum += row.traffic())?)
    }
    let mut sum = Traffic::default();
    add(node.bench.maps.v4(), &mut sum)?;
    add(node.bench.maps.v6(), &mut sum)?;
    Ok(sum)
}

#[test]
fn each_packet_is_counted_once_whoever_sends_it_on() -> Result<()> {
    each_connection(|node, plan, connection| {
        let before = carried(node)?;
        connection.exchange(node)?;
        // The next hop is unknown, so the frame goes up, and the stack sends it on.
        let neighbour = node.neighbour(plan);
        node.namespace.ip(&format!("neighbour delete {neighbour} dev uplink"))?;
        tell(node)?;
        let bytes = frame(connection.arrives, ACK);
        let run = node.xdp(&bytes)?;
        ensure!(run.verdict == XDP_PASS && run.packet == bytes, "verdict {}", run.verdict);
        ensure!(checked(&node.tc(&bytes)?.packet) == connection.wire);
        let replied = node.tc(&frame(connection.wire.reversed(), ACK))?;
        ensure!(checked(&replied.packet) == connection.arrives.reversed());
        let after = carried(node)?;
        let counted = (after.in_packets - before.in_packets, after.out_packets - before.out_packets);
        ensure!(counted == (3, 3), "{counted:?}");
        let each = (bytes.len() - 14) as u64;
        ensure!(after.in_bytes - before.in_bytes == 3 * each, "{after:?}");
        ensure!(after.out_bytes - before.out_bytes == 3 * each, "{after:?}");
        Ok(())
    })
}

/// The routing tables are asked, and all rows looked at, now and then only.
#[test]
fn established_connections_cost_one_row_of_each_way() -> Result<()> {
    const FRAMES: u64 = 200;
    each_connection(|node, _, connection| {
        let before = packets(node)?;
        for _ in 0..FRAMES / 2 {
            connection.exchange(node)?;
        }
        for (role, packets) in packets(node)? {
            let more = packets - before[&role];
            let is_first = role == Role::DNAT.0 || role == Role::REV_SNAT.0;
            ensure!(if is_first { more == FRAMES } else { more < FRAMES }, "{role}: {more}");
        }
        Ok(())
    })
}

/// What rows have counted, by role.
fn packets(node: &mut Node) -> Result<BTreeMap<u8, u64>> {
    fn read<A: KernelAddr>(maps: &impl FamilyMaps<A>, packets: &mut BTreeMap<u8, u64>) -> Result<()> {
        Ok(maps.each_conntrack(&mut |_, row: &CtEntry<A>| {
            packets.insert(row.role, row.packets);
        })?)
    }
    let mut packets = BTreeMap::new();
    read(node.bench.maps.v4(), &mut packets)?;
    read(node.bench.maps.v6(), &mut packets)?;
    Ok(packets)
}

#[test]
fn frames_go_to_another_next_hop_once_it_is_told() -> Result<()> {
    each_connection(|node, plan, connection| {
        let bytes = frame(connection.arrives, ACK);
        ensure!(next_hop(&sent(node.xdp(&bytes)?)?) == NEIGHBOUR);
        move_neighbour(node, plan)?;
        tell(node)?;
        ensure!(next_hop(&sent(node.xdp(&bytes)?)?) == OTHER_MAC);
        connection.exchange(node)
    })
}

/// Without an agent, nobody tells.
#[test]
fn frames_go_to_another_next_hop_soon_if_nobody_tells() -> Result<()> {
    each_connection(|node, plan, connection| {
        let bytes = frame(connection.arrives, ACK);
        ensure!(next_hop(&sent(node.xdp(&bytes)?)?) == NEIGHBOUR);
        move_neighbour(node, plan)?;
        let deadline = Instant::now() + EPOCH;
        loop {
            let asked = Instant::now();
            if next_hop(&sent(node.xdp(&bytes)?)?) == OTHER_MAC {
                return Ok(());
            }
            ensure!(asked < deadline, "goes to the earlier next hop yet");
        }
    })
}

#[test]
fn frames_go_up_where_the_way_ends_and_are_sent_again_once_there_is_one() -> Result<()> {
    each_connection(|node, plan, connection| {
        let bytes = frame(connection.arrives, ACK);
        let network = if plan.node.is_ipv4() { "10.0.0.0/24" } else { "fd00:10::/64" };
        node.namespace.ip(&format!("route add blackhole {network}"))?;
        tell(node)?;
        for _ in 0..2 {
            let run = node.xdp(&bytes)?;
            ensure!(run.verdict == XDP_PASS && run.packet == bytes, "verdict {}", run.verdict);
        }
        node.namespace.ip(&format!("route delete blackhole {network}"))?;
        tell(node)?;
        connection.exchange(node)
    })
}

#[test]
fn frames_that_are_not_for_the_way_go_up() -> Result<()> {
    each_connection(|node, _, connection| {
        let flow = connection.arrives;
        let mut to_others = frame(flow, ACK);
        to_others[..6].copy_from_slice(&OTHER_MAC);
        ensure!(next_hop(&frame(flow, ACK)) == MAC);
        let too_large = with_ip(flow, &transport(flow, ACK, &[0; 1600]));
        for bytes in [to_others, too_large] {
            let run = node.xdp(&bytes)?;
            ensure!(run.verdict == XDP_PASS && run.packet == bytes, "verdict {}", run.verdict);
        }
        connection.exchange(node)
    })
}

#[test]
fn datagrams_do_not_go_to_a_backend_that_is_gone() -> Result<()> {
    for plan in plans() {
        on_a_node(|node| {
            let connection = Forwarded::open(node, &plan, Flow::udp)?;
            connection.exchange(node)?;
            remove_backends(node.bench.maps.v4())?;
            remove_backends(node.bench.maps.v6())?;
            let bytes = frame(connection.arrives, 0);
            let run = node.xdp(&bytes)?;
            ensure!(run.verdict == XDP_PASS && run.packet == bytes, "verdict {}", run.verdict);
            Ok(())
        })?;
    }
    Ok(())
}

/// Those behind the NodePort.
fn remove_backends<A: KernelAddr>(maps: &mut impl FamilyMaps<A>) -> Result<()> {
    let rows = [BACKEND_ID, BACKEND_ID + 1, BACKEND_ID + 2].map(|id| (id, Backend::default()));
    Ok(maps.put_backends(&rows)?)
}

/// Replies to a masquerade that another connection has had since are not the earlier client's.
#[test]
fn rows_of_another_connection_are_another_connections() -> Result<()> {
    each_connection(|node, plan, connection| {
        forget(&mut node.bench, |_| true);
        // Nothing is left but what is remembered of next hops.
        let run = node.xdp(&frame(connection.wire.reversed(), ACK))?;
        ensure!(run.verdict == XDP_PASS, "verdict {}", run.verdict);
        let new = if connection.arrives.proto == 6 { Flow::tcp } else { Flow::udp };
        let arrives = new((plan.outside, 40001), (plan.node, NODE_PORT));
        let wire = checked(&sent(node.xdp(&frame(arrives, SYN))?)?);
        ensure!(wire.dst == (plan.backend, BACKEND_PORT));
        Forwarded { arrives, wire }.exchange(node)
    })
}

//! Datagrams in fragments through services, cut by real stacks, and in orders that networks make of
//! them.

mod peers;

use crate::{
    dsr,
    raw::send,
    world::{lead_datagrams_to, two_nodes, two_nodes_with_clsact},
    xdp,
};
use anyhow::{Context, Result};
use peers::{Caller, Echo, PORT, fragment, fragments};
use tests::{
    agent::SocketLb,
    topology::cluster::{
        Cluster,
        Origin::{self, Client, Node, Pod},
    },
};

/// Ways to the backend on node 1: its datagrams enter the service on node 1 or on node 2.
const WAYS: [(Origin, &str); 10] = [
    (Pod(0, 1), "10.96.0.20:53"),
    (Pod(1, 1), "10.96.0.20:53"),
    (Pod(1, 1), "[fd00:96::20]:53"),
    (Pod(0, 0), "10.96.0.20:53"),
    (Node(1), "10.96.0.20:53"),
    (Node(1), "[fd00:96::20]:53"),
    (Client, "192.168.50.11:30153"),
    (Client, "192.168.50.12:30153"),
    (Client, "[fd00:50::11]:30153"),
    (Client, "[fd00:50::12]:30153"),
];

fn echoing(mut cluster: Cluster, reversed: bool) -> Result<(Cluster, Echo)> {
    lead_datagrams_to(&mut cluster, PORT)?;
    let echo = Echo::start(&cluster.nodes[0].pods[0], reversed)?;
    Ok((cluster, echo))
}

fn large_datagrams(cluster: Cluster) -> Result<()> {
    let (cluster, echo) = echoing(cluster, false)?;
    for (from, to) in WAYS {
        // A fragment that does not fit inside another packet tells its sender the size that does: a
        // datagram is lost then, and those of all sockets get through afterwards.
        Caller::new(&cluster, from, to)?.repeat_whole(4_000).with_context(|| format!("{from:?} → {to}"))?;
        let caller = Caller::new(&cluster, from, to)?;
        for len in [4_000, 20_000, 100, 60_000] {
            caller.exchange_whole(len).with_context(|| format!("{from:?} → {to}"))?;
        }
    }
    echo.end()
}

#[test]
fn large_datagrams_and_their_answers() -> Result<()> {
    large_datagrams(two_nodes(SocketLb::Off)?)
}

#[test]
fn large_datagrams_with_clsact() -> Result<()> {
    large_datagrams(two_nodes_with_clsact()?)
}

#[test]
fn large_datagrams_that_the_driver_passes_up() -> Result<()> {
    large_datagrams(xdp::cluster("native")?)
}

#[test]
fn large_datagrams_with_direct_server_return() -> Result<()> {
    large_datagrams(dsr::cluster()?)
}

/// Reassembles what comes in and cuts it anew, as any host with a stateful firewall does.
const FIREWALL: &str = "table inet fw {
  chain fw {
    type filter hook forward priority 0
    ct state invalid drop
  }
}
";

#[test]
fn large_datagrams_through_a_stateful_firewall() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    cluster.nodes.iter().try_for_each(|node| node.host.netns.nft(FIREWALL))?;
    large_datagrams(cluster)
}

/// All but host processes, whose fragments their own stack sends in order.
fn ways_through_a_network() -> impl Iterator<Item = (Origin, &'static str)> {
    WAYS.into_iter().filter(|(from, _)| !matches!(from, Node(_)))
}

#[test]
fn in_any_order() -> Result<()> {
    let (cluster, echo) = echoing(two_nodes(SocketLb::Off)?, false)?;
    for (from, to) in ways_through_a_network() {
        let caller = Caller::new(&cluster, from, to)?;
        let way = || format!("{from:?} → {to}");
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let arrange = |parts: &mut Vec<Vec<u8>>| {
                *parts = order.map(|i| parts[i].clone()).to_vec();
            };
            caller.exchange(4_000, arrange).with_context(way).with_context(|| format!("{order:?}"))?;
        }
        caller.exchange(20_000, |parts| parts.reverse()).with_context(way).context("reversed")?;
        caller.exchange(60_000, |parts| parts.reverse()).with_context(way).context("reversed, large")?;
    }
    echo.end()
}

#[test]
fn duplicated_and_interleaved() -> Result<()> {
    let (cluster, echo) = echoing(two_nodes(SocketLb::Off)?, false)?;
    for (from, to) in ways_through_a_network() {
        let way = || format!("{from:?} → {to}");
        let caller = Caller::new(&cluster, from, to)?;
        let twice = |parts: &mut Vec<Vec<u8>>| {
            *parts = parts.iter().rev().flat_map(|part| [part.clone(), part.clone()]).collect();
            // The copies of the first come last; the second would begin a datagram that never ends.
            parts.pop();
        };
        caller.exchange(4_000, twice).with_context(way)?;
        let other = Caller::new(&cluster, from, to)?;
        let payloads = [4_000, 5_000].map(Caller::payload);
        let [mut one, mut two] =
            [(&caller, &payloads[0]), (&other, &payloads[1])].map(|(c, p)| fragments(c.own, c.to, p));
        one.reverse();
        two.reverse();
        let rest = two.split_off(one.len());
        let mixed: Vec<_> = one.into_iter().zip(two).flat_map(|(a, b)| [b, a]).chain(rest).collect();
        send(&caller.raw, caller.to, &mixed)?;
        caller.expect(&payloads[0]).with_context(way)?;
        other.expect(&payloads[1]).with_context(way)?;
    }
    echo.end()
}

#[test]
fn answers_in_reversed_order() -> Result<()> {
    let (cluster, echo) = echoing(two_nodes(SocketLb::Off)?, true)?;
    for (from, to) in WAYS {
        let caller = Caller::new(&cluster, from, to)?;
        for len in [4_000, 20_000] {
            caller.exchange_whole(len).with_context(|| format!("{from:?} → {to}"))?;
        }
    }
    echo.end()
}

#[test]
fn others_go_on_during_a_flood_of_lone_fragments() -> Result<()> {
    let (cluster, echo) = echoing(two_nodes(SocketLb::Off)?, false)?;
    for to in ["192.168.50.12:30153", "[fd00:50::12]:30153"] {
        let caller = Caller::new(&cluster, Client, to)?;
        for round in 0..10u32 {
            let lone =
                |id: u32| fragment(caller.own.ip(), caller.to.ip(), 1_000_000 + id, 8_000, true, &[1; 1_000]);
            let flood: Vec<_> = (0..400).map(|i| lone(round * 400 + i)).collect();
            send(&caller.raw, caller.to, &flood)?;
            // Cut here, and not by the client's stack: of IPv4's 65,536 identifications it could take one of
            // the flood's, and the backend would refuse the mixture.
            caller.exchange(20_000, |_| ())?;
            caller.exchange(4_000, |parts| parts.reverse())?;
        }
    }
    echo.end()
}

#[test]
fn what_is_not_ours_passes_in_any_order() -> Result<()> {
    let (cluster, echo) = echoing(two_nodes(SocketLb::Off)?, false)?;
    for to in [format!("10.244.1.10:{PORT}"), format!("[fd00:244:1::10]:{PORT}")] {
        for from in [Pod(1, 1), Node(1)] {
            let caller = Caller::new(&cluster, from, &to)?;
            caller.exchange_whole(20_000)?;
            caller.exchange(4_000, |parts| parts.reverse())?;
        }
    }
    echo.end()
}

//! Rows of live connections that are lost, as the kernel evicts them or somebody deletes them.

use anyhow::{Context as _, Result, ensure};
use proxy_common::maps::conntrack::CtKey;
use proxy_userspace::{
    dataplane::{FamilyMaps, MapAddr, MapStore as _},
    kernel::{KernelAddr, KernelMaps, Pins},
};
use tests::{
    agent::SocketLb,
    probe::Proto,
    topology::cluster::{
        Cluster,
        Origin::{self, Client, Pod},
    },
};

use crate::{socket::Socket, world::two_nodes};

/// Clients, and services that they ask: on the backend's node and on the other one, masqueraded and not.
const CONNECTIONS: [(Origin, Proto, &str); 10] = [
    (Pod(0, 1), Proto::Tcp, "10.96.0.20:90"),
    (Pod(0, 1), Proto::Tcp, "[fd00:96::20]:90"),
    (Pod(0, 1), Proto::Udp, "10.96.0.20:53"),
    (Pod(0, 1), Proto::Udp, "[fd00:96::20]:53"),
    (Pod(1, 1), Proto::Tcp, "10.96.0.20:90"),
    (Pod(1, 1), Proto::Udp, "[fd00:96::20]:53"),
    (Client, Proto::Tcp, "192.168.50.11:30090"),
    (Client, Proto::Udp, "192.168.50.12:30053"),
    (Client, Proto::Tcp, "[fd00:50::12]:30090"),
    (Client, Proto::Udp, "[fd00:50::11]:30053"),
];

/// Nobody notices: neither the connection whose row it was, nor any other.
#[test]
fn each_row_of_each_connection_may_be_lost() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let open =
        |(i, (from, proto, to)): (usize, _)| Socket::open(&cluster, from, 45_000 + i as u16, proto, to);
    let sockets: Vec<_> = CONNECTIONS.into_iter().enumerate().map(open).collect::<Result<_>>()?;
    let mut lost = 0;
    for node in 0..cluster.nodes.len() {
        let mut maps = KernelMaps::open(&Pins::new(cluster.nodes[node].agent.pins()))?;
        lost += lose_each(&cluster, maps.v4(), &sockets).with_context(|| format!("node {node}"))?;
        lost += lose_each(&cluster, maps.v6(), &sockets).with_context(|| format!("node {node}"))?;
    }
    // Two without masquerade, four with.
    ensure!(lost == 6 * 2 + 4 * 4, "{lost} rows");
    Ok(())
}

/// Returns how many rows of connections to services there are. Where datagrams come to a backend here from
/// the other node's address, the place of their replies is kept, too.
fn lose_each<A: KernelAddr + MapAddr>(
    cluster: &Cluster,
    maps: &mut impl FamilyMaps<A>,
    sockets: &[Socket<'_>],
) -> Result<usize> {
    let before = keys(maps)?;
    for key in &before {
        maps.delete_conntrack(&[*key])?;
        for socket in sockets {
            socket.answers().with_context(|| format!("without {key:?}"))?;
        }
        let after = keys(maps)?;
        ensure!(after == before, "without {key:?}: {after:?}, before {before:?}");
    }
    ensure!(cluster.nodes.iter().all(|node| node.agent.is_running()), "an agent has ended");
    let mut translated = 0;
    maps.each_conntrack(&mut |_, row| translated += usize::from(row.service != 0))?;
    Ok(translated)
}

fn keys<A: KernelAddr + MapAddr>(maps: &impl FamilyMaps<A>) -> Result<Vec<CtKey<A>>> {
    let mut keys = Vec::new();
    maps.each_conntrack(&mut |key, _| keys.push(*key))?;
    keys.sort_unstable_by_key(|key| (key.proto, key.hook, key.src, key.sport, key.dst, key.dport));
    Ok(keys)
}

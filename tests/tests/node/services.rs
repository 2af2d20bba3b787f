//! Every way into a service, for each kind of socket translation.

use crate::world::{Open, answer, two_nodes, two_nodes_with_clsact};
use anyhow::{Result, ensure};
use std::collections::BTreeSet;
use tests::{
    agent::SocketLb,
    demo, late,
    probe::{Bulk, Proto},
    topology::cluster::{
        Cluster,
        Origin::{Client, Node, Pod},
    },
};

fn every_way_in(cluster: &Cluster) -> Result<()> {
    let rows = demo::check_all(cluster)?;
    let table = demo::render(&rows);
    ensure!(rows.iter().all(|row| row.holds || row.late), "\n{table}");
    ensure!(rows.iter().all(|row| row.holds), late!("\n{table}"));
    Ok(())
}

#[test]
fn services_with_socket_lb_for_all() -> Result<()> {
    every_way_in(&two_nodes(SocketLb::All)?)
}

#[test]
fn services_with_socket_lb_for_the_host() -> Result<()> {
    every_way_in(&two_nodes(SocketLb::Host)?)
}

#[test]
fn services_without_socket_lb() -> Result<()> {
    every_way_in(&two_nodes(SocketLb::Off)?)
}

#[test]
fn services_with_clsact() -> Result<()> {
    let cluster = two_nodes_with_clsact()?;
    let filters = cluster.nodes[0].host.netns.output("tc", &["filter", "show", "dev", "eth0", "ingress"])?;
    ensure!(filters.contains("bpf"), "{filters}");
    every_way_in(&cluster)
}

#[test]
fn hairpin_is_masqueraded_on_the_packet_path() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    for to in ["10.96.0.20:90", "[fd00:96::20]:90"] {
        let answer = answer(&cluster, Pod(0, 0), Proto::Tcp, to)?;
        assert!(cluster.nodes[0].addresses().contains(&answer.saw.ip()), "{answer}");
    }
    Ok(())
}

#[test]
fn large_transfers_are_unharmed() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let megabyte = Bulk { up: 1 << 20, down: 1 << 20 };
    for (from, to) in [
        (Pod(0, 1), "10.96.0.20:90"),
        (Pod(0, 0), "10.96.0.20:90"),
        (Pod(1, 1), "10.96.0.20:90"),
        (Pod(1, 1), "[fd00:96::20]:90"),
        (Node(1), "10.96.0.20:90"),
        (Node(0), "[fd00:96::20]:90"),
        (Client, "192.168.50.11:30190"),
        (Client, "192.168.50.12:30190"),
        (Client, "[fd00:50::12]:30190"),
    ] {
        let answer = Open::new(&cluster, from, to)?.send(megabyte)?;
        assert_eq!((answer.server.as_str(), answer.received), ("pod1-1", 1 << 20), "{from:?} → {to}");
    }
    Ok(())
}

#[test]
fn concurrent_clients_behind_one_address_get_ports_of_their_own() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    // The backend on the other node sees all of them come from this node.
    let open = (0..50).map(|number| Open::numbered(&cluster, Client, "192.168.50.12:30190", number));
    let open: Vec<_> = open.collect::<Result<_>>()?;
    let peers: BTreeSet<_> =
        open.iter().map(|open| Ok(open.send(Bulk::default())?.saw)).collect::<Result<_>>()?;
    assert_eq!(peers.len(), open.len());
    assert!(peers.iter().all(|peer| cluster.nodes[1].addresses().contains(&peer.ip())), "{peers:?}");
    Ok(())
}

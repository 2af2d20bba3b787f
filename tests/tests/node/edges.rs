//! Devices that come later, and the rules of a CNI between the edges.

use crate::world::{LINE, answer, is_served, soon, two_nodes};
use anyhow::{Context, Result};
use tests::{
    agent::SocketLb,
    netns::Namespace,
    probe::Proto,
    topology::cluster::Origin::{Client, Pod},
};

#[test]
fn a_pod_that_comes_later_is_served() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    cluster.nodes[1].add_pod()?;
    for to in ["10.96.0.20:90", "[fd00:96::20]:90"] {
        soon(|| answer(&cluster, Pod(1, 2), LINE, to))?;
    }
    Ok(())
}

/// Accepts what the true addresses allow, and nothing that conntrack calls invalid.
const FIREWALL: &str = "
table inet cni {
    counter invalid {}
    counter refused {}
    chain forward {
        type filter hook forward priority 0; policy drop;
        ct state invalid counter name invalid drop
        ct state established,related accept
        meta l4proto ipv6-icmp accept
        ip saddr 192.168.50.100 ip daddr 10.244.1.10 th dport { 9090, 5353 } accept
        ip6 saddr fd00:50::100 ip6 daddr fd00:244:1::10 th dport { 9090, 5353 } accept
        ip saddr 10.244.1.0/24 ip daddr 10.244.1.10 accept
        counter name refused
    }
}
";

fn packets(node: &Namespace, counter: &str) -> Result<u64> {
    let text = node.output("nft", &["list", "counter", "inet", "cni", counter])?;
    let count = text.split_once("packets ").and_then(|(_, rest)| rest.split(' ').next());
    Ok(count.with_context(|| text.clone())?.parse()?)
}

#[test]
fn the_firewall_between_the_edges_sees_true_addresses() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let node = &cluster.nodes[0].host.netns;
    answer(&cluster, Pod(1, 1), LINE, "10.96.0.20:90")?;
    node.nft(FIREWALL)?;
    for _ in 0..20 {
        for (from, proto, to) in [
            (Client, LINE, "192.168.50.11:30190"),
            (Client, Proto::Udp, "192.168.50.11:30153"),
            (Client, LINE, "[fd00:50::11]:30190"),
            (Pod(0, 1), LINE, "10.96.0.20:90"),
            (Pod(0, 0), LINE, "10.96.0.20:90"),
        ] {
            assert_eq!(answer(&cluster, from, proto, to)?.server, "pod1-1");
        }
    }
    assert_eq!(packets(node, "invalid")?, 0);
    assert_eq!(packets(node, "refused")?, 0);
    // By its own address a pod of the other node is not let in, by whatever name it asks.
    assert!(!is_served(&cluster, Pod(1, 1), "10.96.0.20:90")?);
    assert!(packets(node, "refused")? > 0);
    Ok(())
}

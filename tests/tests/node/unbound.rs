//! Clients that leave the choice of their address to the kernel, as almost all programs do, beside clients
//! that have bound it. The kernel chooses by the route to what it takes for the destination, which is the
//! service or its endpoint, as the mode of socket LB has it.

use crate::world::{LINE, two_nodes};
use anyhow::{Result, ensure};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};
use tests::{
    agent::SocketLb,
    probe::{Answer, Dial, Outcome, Proto},
    topology::cluster::{
        Cluster,
        Origin::{self, Node, Pod},
    },
};

/// Enough connections that a choice between two endpoints shows both.
const SEVERAL: u32 = 40;
const BOTH: [&str; 2] = ["pod1-1", "pod2-1"];

/// Whose address an endpoint sees.
#[derive(Clone, Copy)]
enum Face {
    /// A ClusterIP: a pod's own.
    Cluster,
    /// A NodePort of the client's node: a node's, unless the client's socket was translated.
    OwnNode,
    /// A NodePort of another node, which masquerades: a node's.
    OtherNode,
}

/// The service `web` of `tests/manifests/two-nodes.yaml` from the first node.
const WEB: [(Proto, &str, Face); 12] = [
    (LINE, "10.96.0.10:90", Face::Cluster),
    (LINE, "[fd00:96::10]:90", Face::Cluster),
    (LINE, "192.168.50.11:30090", Face::OwnNode),
    (LINE, "[fd00:50::11]:30090", Face::OwnNode),
    (LINE, "192.168.50.12:30090", Face::OtherNode),
    (LINE, "[fd00:50::12]:30090", Face::OtherNode),
    (Proto::Udp, "10.96.0.10:53", Face::Cluster),
    (Proto::Udp, "[fd00:96::10]:53", Face::Cluster),
    (Proto::Udp, "192.168.50.11:30053", Face::OwnNode),
    (Proto::Udp, "[fd00:50::11]:30053", Face::OwnNode),
    (Proto::Udp, "192.168.50.12:30053", Face::OtherNode),
    (Proto::Udp, "[fd00:50::12]:30053", Face::OtherNode),
];

fn everyone_is_served(mode: SocketLb) -> Result<()> {
    let cluster = two_nodes(mode)?;
    for from in [Pod(0, 1), Node(0)] {
        for (proto, to, face) in WEB {
            for bound in [false, true] {
                let to = to.parse()?;
                let what = format!("{from:?} → {to} {proto}, bound: {bound}");
                let mut servers = BTreeSet::new();
                for outcome in dial(&cluster, from, proto, to, bound)? {
                    let answer = outcome.answer(&what)?;
                    ensure!(answer.peer == to, "{what}: {answer}");
                    ensure!(sees_whom_it_should(&cluster, mode, from, face, &answer), "{what}: {answer}");
                    servers.insert(answer.server);
                }
                ensure!(servers.iter().eq(&BOTH), "{what}: {servers:?}");
            }
        }
    }
    Ok(())
}

fn dial(cluster: &Cluster, from: Origin, proto: Proto, to: SocketAddr, bound: bool) -> Result<Vec<Outcome>> {
    let (host, worker) = cluster.host(from);
    let from = bound.then(|| own_address(cluster, from, to));
    worker.dial(&Dial { from, count: SEVERAL, ..Dial::new(&host.netns, proto, to) })
}

fn own_address(cluster: &Cluster, from: Origin, to: SocketAddr) -> IpAddr {
    let (host, _) = cluster.host(from);
    if to.is_ipv4() { host.v4.into() } else { host.v6.into() }
}

fn sees_whom_it_should(cluster: &Cluster, mode: SocketLb, from: Origin, face: Face, answer: &Answer) -> bool {
    let saw = answer.saw.ip();
    let keeps_its_own = match (from, face) {
        (Pod(..), Face::Cluster) => true,
        (Pod(..), Face::OwnNode) => mode == SocketLb::All,
        _ => false,
    };
    if keeps_its_own {
        return saw == own_address(cluster, from, answer.peer);
    }
    cluster.nodes.iter().any(|node| node.addresses().contains(&saw))
}

#[test]
fn unbound_clients_with_socket_lb_for_all() -> Result<()> {
    everyone_is_served(SocketLb::All)
}

#[test]
fn unbound_clients_with_socket_lb_for_the_host() -> Result<()> {
    everyone_is_served(SocketLb::Host)
}

#[test]
fn unbound_clients_without_socket_lb() -> Result<()> {
    everyone_is_served(SocketLb::Off)
}

//! A node of a cluster, and the links to its pods.

use super::{Host, SERVERS, decimal, lan_v4, lan_v6, pod_routes};
use crate::{
    agent::Agent,
    probe::{Serve, Worker},
    topology::{Batch, NODE_V6},
};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What routed pods send to, and where it is.
const ROUTED_GATEWAY: &str = "169.254.1.1";
const ROUTED_MAC: &str = "02:00:00:00:03:01";

/// How a node reaches its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodLinks {
    /// By a bridge, which has the pods' gateway.
    Bridged,
    /// By a route to each pod, so that the node's stack sees all that pods say to each other.
    Routed,
}

/// A node, its pods and its agent.
#[derive(Debug)]
pub struct Node {
    /// In the node's cgroup: the sockets of the node and of its pods.
    pub worker: Worker,
    /// Prepared, not started.
    pub agent: Agent,
    /// The node itself.
    pub host: Host,
    /// The first has servers, the others are clients.
    pub pods: Vec<Host>,
    number: u8,
    links: PodLinks,
}

impl Node {
    /// Addresses that masqueraded packets may carry.
    pub fn addresses(&self) -> [IpAddr; 4] {
        let (v4, v6) = (pod_v4(self.number, 1), pod_v6(self.number, 1));
        [self.host.v4.into(), self.host.v6.into(), v4.into(), v6.into()]
    }

    pub(super) fn build(number: u8, shunt: &Value, links: PodLinks) -> Result<Self> {
        let name = format!("node{number}");
        let kube_proxy = json!({
            "detectLocalMode": "ClusterCIDR",
            "clusterCIDR": "10.244.0.0/16,fd00:244::/32",
        });
        let agent = Agent::prepare(&name, &kube_proxy, shunt)?;
        let worker = Worker::start(Some(&agent.cgroup))?;
        let host = Host::new(name, lan_v4(10 + number), lan_v6(10 + number))?;
        host.netns.sysctl(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/conf/all/rp_filter", "1"),
            ("ipv4/conf/default/rp_filter", "1"),
        ])?;
        Ok(Self { worker, agent, host, pods: Vec::new(), number, links })
    }

    /// The side of the pods, and the ways to the pods of the other nodes.
    pub(super) fn finish(&self, nodes: u8) -> Result<()> {
        let mut batch = Batch::default();
        if self.links == PodLinks::Bridged {
            batch
                .line(format!(
                    "link add cni0 address 02:00:00:00:02:{:02x} type bridge mcast_snooping 0",
                    self.number
                ))
                .address(pod_v4(self.number, 1).into(), 24, "cni0")
                .address(pod_v6(self.number, 1).into(), 64, "cni0")
                .link_local(NODE_V6, "cni0")
                .line("link set cni0 up");
        }
        batch.line(pod_routes((1..=nodes).filter(|other| *other != self.number)));
        self.host.netns.ip(batch.as_str())
    }

    /// Adds a pod; the first has address `.10`.
    pub fn add_pod(&mut self) -> Result<&Host> {
        let place = 10 + self.pods.len() as u8;
        let (v4, v6) = (pod_v4(self.number, place), pod_v6(self.number, place));
        let name = format!("pod{}-{}", self.number, self.pods.len() + 1);
        let pod = Host::new(name, v4, v6)?;
        self.plug(&pod)?;
        self.pods.push(pod);
        self.pods.last().context("a pod was just added")
    }

    /// Takes a pod's link away; its addresses and routes go with it.
    pub fn unplug(&self, pod: usize) -> Result<()> {
        self.host.netns.ip(&format!("link delete {}", self.pods[pod].name))
    }

    /// Gives a pod a link, with its addresses and routes.
    pub fn plug(&self, pod: &Host) -> Result<()> {
        match self.links {
            PodLinks::Bridged => self.plug_into_bridge(pod),
            PodLinks::Routed => self.plug_into_route(pod),
        }
    }

    /// The pod's gateway is an address that nobody has, known to be at the node's end of the link.
    fn plug_into_route(&self, pod: &Host) -> Result<()> {
        let (v4, v6, name) = (pod.v4, pod.v6, &pod.name);
        self.host.netns.ip(Batch::default()
            .line(format!(
                "link add {name} address {ROUTED_MAC} type veth peer name eth0 netns {}",
                pod.netns.name()
            ))
            .link_local(NODE_V6, name)
            .line(format!("link set {name} up"))
            .line(format!("route add {v4}/32 dev {name}\nroute add {v6}/128 dev {name}"))
            .as_str())?;
        pod.netns.ip(Batch::default()
            .line("link set lo up")
            .address(v4.into(), 32, "eth0")
            .address(v6.into(), 128, "eth0")
            .line("link set eth0 up")
            .line(format!("neighbour add {ROUTED_GATEWAY} lladdr {ROUTED_MAC} dev eth0 nud permanent"))
            .line(format!("route add {ROUTED_GATEWAY}/32 dev eth0 scope link"))
            .line(format!("route add default via {ROUTED_GATEWAY}"))
            .line(format!("route add ::/0 via {NODE_V6} dev eth0"))
            .as_str())
    }

    fn plug_into_bridge(&self, pod: &Host) -> Result<()> {
        let (v4, v6) = (pod.v4, pod.v6);
        self.host.netns.ip(Batch::default()
            .line(format!("link add {} type veth peer name eth0 netns {}", pod.name, pod.netns.name()))
            .line(format!("link set {} master cni0 up", pod.name))
            .as_str())?;
        pod.netns.ip(Batch::default()
            .line("link set lo up")
            .address(v4.into(), 24, "eth0")
            .address(v6.into(), 64, "eth0")
            .line("link set eth0 up")
            .line(format!("route add default via {}", pod_v4(self.number, 1)))
            .line(format!("route add ::/0 via {NODE_V6} dev eth0"))
            .as_str())
    }

    /// Starts servers of every kind in a pod.
    pub fn serve(&self, pod: usize) -> Result<()> {
        let pod = &self.pods[pod];
        let any = |port| [SocketAddr::from(([0; 4], port)), SocketAddr::from(([0u16; 8], port))];
        let sockets = SERVERS.iter().flat_map(|(proto, port)| any(*port).map(|address| (*proto, address)));
        self.worker.serve(Serve {
            netns: pod.netns.path(),
            name: pod.name.clone(),
            sockets: sockets.collect(),
        })
    }
}

pub(super) fn pod_v4(node: u8, number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, node, number)
}

pub(super) fn pod_v6(node: u8, number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x244, node.into(), 0, 0, 0, 0, decimal(number))
}

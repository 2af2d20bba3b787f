//! Several nodes with pods, an outside client and a load balancer.
//!
//! ```text
//!   pods 10.244.1.x                     pods 10.244.2.x
//!    |  |                                |  |
//!   cni0 (.1)                           cni0 (.1)
//!   node1                               node2              client           balancer
//!   eth0 192.168.50.11                  eth0 .12           eth0 .100        eth0 .200
//!    |                                   |                  |                |
//!   ============================== lan (a bridge) ==============================
//! ```
//!
//! The same in IPv6: `fd00:50::11`, `fd00:244:1::x`. Nodes route each other's pods
//! directly. What nobody knows is routed to the balancer, which has 198.51.100.10 and .20
//! and drops the rest.

mod node;

pub use node::{Node, PodLinks};

use super::Batch;
use crate::{
    netns::Namespace,
    offload,
    probe::{Dial, Forward, Outcome, Proto, Worker},
};
use anyhow::Result;
use node::{pod_v4, pod_v6};
use serde_json::Value;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Pods have one server of each kind.
pub const SERVERS: [(Proto, u16); 3] = [(Proto::Http, 8080), (Proto::Tcp, 9090), (Proto::Udp, 5353)];
const BALANCER: u8 = 200;
const CLIENT: u8 = 100;

/// A machine or a container: a namespace and its addresses.
#[derive(Debug)]
pub struct Host {
    /// How it is called.
    pub name: String,
    /// Where it lives.
    pub netns: Namespace,
    /// Its address.
    pub v4: Ipv4Addr,
    /// Its address.
    pub v6: Ipv6Addr,
}

impl Host {
    fn new(name: String, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<Self> {
        Ok(Self { netns: Namespace::create(&name)?, name, v4, v6 })
    }
}

/// Where a connection starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The pod with this index on the node with this index.
    Pod(usize, usize),
    /// The host network of the node with this index.
    Node(usize),
    /// The outside client.
    Client,
}

/// Everything together.
#[derive(Debug)]
pub struct Cluster {
    /// In no node's cgroup: the sockets of the client and the balancer.
    pub outside: Worker,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// Somebody who is no part of the cluster.
    pub client: Host,
    /// Passes connections to 198.51.100.x on to node ports.
    pub balancer: Host,
    lan: Namespace,
}

impl Cluster {
    /// Builds `nodes` nodes with two bridged pods each. `shunt` is the configuration of every agent.
    pub fn build(nodes: u8, shunt: &Value) -> Result<Self> {
        Self::build_with(nodes, shunt, PodLinks::Bridged)
    }

    /// The same, with pods on links of this kind.
    pub fn build_with(nodes: u8, shunt: &Value, links: PodLinks) -> Result<Self> {
        let lan = Namespace::create("lan")?;
        lan.ip("link set lo up\nlink add lan type bridge mcast_snooping 0\nlink set lan up")?;
        let host = |name: &str, number| Host::new(name.into(), lan_v4(number), lan_v6(number));
        let mut cluster = Self {
            outside: Worker::start(None)?,
            nodes: Vec::new(),
            client: host("client", CLIENT)?,
            balancer: host("balancer", BALANCER)?,
            lan,
        };
        cluster.connect(&cluster.client)?;
        cluster.connect(&cluster.balancer)?;
        for number in 1..=nodes {
            let node = Node::build(number, shunt, links)?;
            cluster.connect(&node.host)?;
            node.finish(nodes)?;
            cluster.nodes.push(node);
        }
        cluster
            .balancer
            .netns
            .ip("address add 198.51.100.10/32 dev lo\naddress add 198.51.100.20/32 dev lo")?;
        cluster.balancer.netns.ip(&pod_routes(1..=nodes))?;
        cluster.balancer.netns.ip6("route add blackhole default")?;
        // Everything unknown goes to the balancer, too, and falls silent there.
        let default = format!(
            "route add default via {}\nroute add ::/0 via {} dev eth0",
            lan_v4(BALANCER),
            lan_v6(BALANCER)
        );
        cluster.client.netns.ip(&default)?;
        for node in &mut cluster.nodes {
            node.host.netns.ip(&default)?;
            node.add_pod()?;
            node.add_pod()?;
            node.serve(0)?;
        }
        Ok(cluster)
    }

    fn connect(&self, host: &Host) -> Result<()> {
        let (lan, name) = (self.lan.name(), &host.name);
        host.netns.ip(Batch::default()
            .line("link set lo up")
            .line(format!("link add eth0 type veth peer name {name} netns {lan}"))
            .address(host.v4.into(), 24, "eth0")
            .address(host.v6.into(), 64, "eth0")
            .line("link set eth0 up")
            .as_str())?;
        self.lan.ip(&format!("link set {name} master lan up"))
    }

    /// Makes the links of all nodes behave as wires, for programs in their drivers' hook.
    pub fn wire(&self) -> Result<()> {
        self.nodes.iter().try_for_each(|node| offload::as_wire(&self.lan, &node.host.name, true))
    }

    /// The other end of a node's link.
    pub fn far_end(&self, node: usize) -> (&Namespace, &str) {
        (&self.lan, &self.nodes[node].host.name)
    }

    /// Starts all agents with these objects and waits until they have written everything.
    pub fn start(&mut self, objects: &[Value]) -> Result<()> {
        for node in &mut self.nodes {
            node.agent.write(objects)?;
            node.agent.start(&node.host.netns)?;
        }
        self.nodes.iter().try_for_each(|node| node.agent.wait_in_sync())
    }

    /// The machine or container of an origin, and the process that has its sockets.
    pub fn host(&self, origin: Origin) -> (&Host, &Worker) {
        match origin {
            Origin::Pod(node, pod) => (&self.nodes[node].pods[pod], &self.nodes[node].worker),
            Origin::Node(node) => (&self.nodes[node].host, &self.nodes[node].worker),
            Origin::Client => (&self.client, &self.outside),
        }
    }

    /// Opens `count` connections one after the other.
    pub fn dial(&self, origin: Origin, proto: Proto, to: SocketAddr, count: u32) -> Result<Vec<Outcome>> {
        let (host, worker) = self.host(origin);
        worker.dial(&Dial { count, ..Dial::new(&host.netns, proto, to) })
    }

    /// Lets the balancer pass connections to `address` port 80 on to a node port.
    pub fn balance(&self, address: &str, node_port: u16) -> Result<()> {
        let targets = self.nodes.iter().map(|node| SocketAddr::new(node.host.v4.into(), node_port));
        self.outside.forward(Forward {
            netns: self.balancer.netns.path(),
            name: "balancer".into(),
            listen: SocketAddr::new(address.parse()?, 80),
            to: targets.collect(),
        })
    }

    /// How many connections the balancer got since it was last asked.
    pub fn balanced(&self) -> Result<usize> {
        let arrivals = self.outside.arrivals()?;
        Ok(arrivals.iter().filter(|arrival| arrival.server == "balancer").count())
    }
}

/// Routes to the pods of these nodes.
fn pod_routes(nodes: impl Iterator<Item = u8>) -> String {
    let mut batch = Batch::default();
    for node in nodes {
        batch.line(format!("route add {}/24 via {}", pod_v4(node, 0), lan_v4(10 + node)));
        batch.line(format!("route add {}/64 via {}", pod_v6(node, 0), lan_v6(10 + node)));
    }
    batch.as_str().into()
}

fn lan_v4(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 50, number)
}

fn lan_v6(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x50, 0, 0, 0, 0, 0, decimal(number))
}

/// The hexadecimal number that reads as `number` does in decimal: 11 becomes 0x11.
fn decimal(number: u8) -> u16 {
    let number = u16::from(number);
    number / 100 * 256 + number / 10 % 10 * 16 + number % 10
}

//! One node under test, and the rest of the world around it.
//!
//! ```text
//!   pod   pod   pod            client            sink: other nodes, pods on them,
//!    |     |     |               |               load balancers, every other address
//!   ===== cni0 ====              |                |
//!        node --- eth0 -------- wire (a bridge, in sink)
//! ```
//!
//! The client may use any source address and the sink takes any destination, because
//! what comes in on their links is delivered locally whatever its destination. Both
//! send by way of the node, so no packet goes past it: what nobody translates travels
//! client → node → sink, with its addresses unchanged.

use super::{Batch, NODE_V6, full_length};
use crate::netns::Namespace;
use anyhow::{Context, Result};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

const SINK_V4: &str = "169.254.7.1";
const SINK_V6: &str = "fe80::2:1";
const CLIENT_V4: &str = "169.254.7.2";
const CLIENT_V6: &str = "fe80::2:2";
/// The node's address on the pods' side.
const GATEWAY_V4: &str = "10.255.255.1";
const GATEWAY_V6: &str = "fd00:10:ffff::1";
/// The bridge that pods are connected to unless something else is asked for.
const BRIDGE: &str = "cni0";

/// How a pod is connected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// To the usual bridge.
    Bridge,
    /// To a bridge of this name.
    BridgeNamed(String),
    /// By a routed link whose end at the node has this name.
    Routed(String),
}

/// A pod of the node: its address, and where it is connected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    /// Its first or only address.
    pub address: IpAddr,
    /// Its link.
    pub port: Port,
}

/// The node and the world around it.
#[derive(Debug)]
pub struct Stage {
    /// The node under test.
    pub node: Namespace,
    /// Clients elsewhere.
    pub client: Namespace,
    /// Everything else elsewhere.
    pub sink: Namespace,
    pods: BTreeMap<PodKey, Namespace>,
    addresses: Vec<IpAddr>,
    bridges: BTreeSet<String>,
    clients: BTreeSet<IpAddr>,
}

impl Stage {
    /// Builds the node with these addresses on `eth0`, the first of a family being the primary one.
    pub fn build(addresses: &[IpAddr]) -> Result<Self> {
        let mut stage = Self {
            node: Namespace::create("node")?,
            client: Namespace::create("client")?,
            sink: Namespace::create("sink")?,
            pods: BTreeMap::new(),
            addresses: addresses.to_vec(),
            bridges: BTreeSet::new(),
            clients: BTreeSet::new(),
        };
        stage.sysctls()?;
        stage.links()?;
        stage.node_routes()?;
        everything_is_here(&stage.sink, "wire")?;
        everything_is_here(&stage.client, "eth0")?;
        stage.routes_to_node()?;
        stage.bridge(BRIDGE)?;
        stage.node.ip(Batch::default()
            .address(GATEWAY_V4.parse()?, 32, BRIDGE)
            .address(GATEWAY_V6.parse()?, 128, BRIDGE)
            .as_str())?;
        Ok(stage)
    }

    /// Addresses a masqueraded packet may carry.
    pub fn node_addresses(&self) -> Result<Vec<IpAddr>> {
        let mut addresses = self.addresses.clone();
        addresses.extend([GATEWAY_V4.parse::<IpAddr>()?, GATEWAY_V6.parse::<IpAddr>()?]);
        Ok(addresses)
    }

    /// Whether the node itself has this address.
    pub fn is_node_address(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) || address.is_loopback()
    }

    /// A pod that was added before.
    pub fn pod(&self, key: &PodKey) -> Result<&Namespace> {
        self.pods.get(key).with_context(|| format!("no pod {key:?}"))
    }

    /// All pods.
    pub fn pods(&self) -> impl Iterator<Item = (&PodKey, &Namespace)> {
        self.pods.iter()
    }

    fn sysctls(&self) -> Result<()> {
        self.node.sysctl(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            // Strict: a packet whose source is not routed to where it came from is dropped.
            ("ipv4/conf/all/rp_filter", "1"),
            ("ipv4/conf/default/rp_filter", "1"),
        ])?;
        for world in [&self.client, &self.sink] {
            world.sysctl(&[
                // Every address is local here; answer ARP for configured ones only.
                ("ipv4/conf/all/arp_ignore", "1"),
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
            ])?;
        }
        Ok(())
    }

    fn links(&self) -> Result<()> {
        let (sink, client) = (self.sink.name(), self.client.name());
        self.node.ip(Batch::default()
            .line("link set lo up")
            .line(format!("link add eth0 type veth peer name node netns {sink}"))
            .as_str())?;
        self.sink.ip(Batch::default()
            .line("link set lo up")
            .line("link add wire address 02:00:00:00:00:02 type bridge mcast_snooping 0")
            .line(format!("link add client type veth peer name eth0 netns {client}"))
            .line("link set node master wire up")
            .line("link set client master wire up")
            .address(SINK_V4.parse()?, 32, "wire")
            .link_local(SINK_V6, "wire")
            .line("link set wire up")
            .as_str())?;
        self.client.ip(Batch::default()
            .line("link set lo up")
            .address(CLIENT_V4.parse()?, 32, "eth0")
            .link_local(CLIENT_V6, "eth0")
            .line("link set eth0 up")
            .as_str())
    }

    fn node_routes(&self) -> Result<()> {
        let mut batch = Batch::default();
        for address in &self.addresses {
            batch.address(*address, full_length(*address), "eth0");
        }
        batch.link_local(NODE_V6, "eth0").line("link set eth0 up");
        self.default_routes(&mut batch);
        self.node.ip(batch.as_str())
    }

    /// The ways out of the node, from its primary addresses unless somebody says otherwise.
    fn default_routes(&self, batch: &mut Batch) {
        let primary = |v4| self.addresses.iter().find(|address| address.is_ipv4() == v4);
        if let Some(primary) = primary(true) {
            batch.line(format!("route replace default via {SINK_V4} dev eth0 onlink src {primary}"));
        }
        let source = primary(false).map(|address| format!(" src {address}")).unwrap_or_default();
        batch.line(format!("route replace ::/0 via {SINK_V6} dev eth0{source}"));
    }

    /// The rest of the world sends everything to the node.
    fn routes_to_node(&self) -> Result<()> {
        let node = self.addresses.iter().find(|address| address.is_ipv4());
        for (world, device) in [(&self.sink, "wire"), (&self.client, "eth0")] {
            if let Some(node) = node {
                world.ip(&format!("route replace default via {node} dev {device} onlink"))?;
            }
            world.ip6(&format!("route replace default via {NODE_V6} dev {device}"))?;
        }
        Ok(())
    }

    /// Gives the node these addresses in place of those it has.
    pub fn readdress(&mut self, addresses: &[IpAddr]) -> Result<()> {
        let before = std::mem::replace(&mut self.addresses, addresses.to_vec());
        let mut batch = Batch::default();
        for address in addresses.iter().filter(|address| !before.contains(address)) {
            batch.address(*address, full_length(*address), "eth0");
        }
        self.default_routes(&mut batch);
        self.node.ip(batch.as_str())?;
        self.routes_to_node()?;
        let mut batch = Batch::default();
        for address in before.iter().filter(|address| !addresses.contains(address)) {
            batch.line(format!("address delete {address}/{} dev eth0", full_length(*address)));
        }
        self.node.ip(batch.as_str())
    }

    fn bridge(&mut self, name: &str) -> Result<()> {
        if self.bridges.insert(name.into()) {
            // A fixed address: a bridge without one changes it with its ports.
            let hardware = format!("02:00:00:00:01:{:02x}", self.bridges.len());
            self.node.ip(Batch::default()
                .line(format!("link add {name} address {hardware} type bridge mcast_snooping 0"))
                .link_local(NODE_V6, name)
                .line(format!("link set {name} up"))
                .as_str())?;
        }
        Ok(())
    }

    /// Adds a pod of the node unless it exists.
    pub fn add_pod(&mut self, key: &PodKey) -> Result<()> {
        if self.pods.contains_key(key) {
            return Ok(());
        }
        let pod = Namespace::create(&format!("pod{}", self.pods.len()))?;
        let device = match &key.port {
            Port::Routed(name) => name.clone(),
            _ => format!("pod{}", self.pods.len()),
        };
        let mut batch = Batch::default();
        batch.line(format!("link add {device} type veth peer name eth0 netns {}", pod.name()));
        match &key.port {
            Port::Bridge => batch.line(format!("link set {device} master {BRIDGE} up")),
            Port::BridgeNamed(bridge) => {
                self.bridge(bridge)?;
                batch.line(format!("link set {device} master {bridge} up"))
            }
            Port::Routed(_) => batch.link_local(NODE_V6, &device).line(format!("link set {device} up")),
        };
        self.node.ip(batch.as_str())?;
        pod.ip(Batch::default()
            .line("link set lo up")
            .address(key.address, full_length(key.address), "eth0")
            .line("link set eth0 up")
            .line(format!("route add {GATEWAY_V4} dev eth0 scope link"))
            .line(format!("route add default via {GATEWAY_V4} dev eth0"))
            .line(format!("route add ::/0 via {NODE_V6} dev eth0"))
            .as_str())?;
        self.pods.insert(key.clone(), pod);
        self.route_to_pod(key, key.address)
    }

    /// Routes an address to a pod, away from another pod that had it.
    pub fn route_to_pod(&self, key: &PodKey, address: IpAddr) -> Result<()> {
        let device = match &key.port {
            Port::Bridge => BRIDGE,
            Port::BridgeNamed(name) | Port::Routed(name) => name,
        };
        self.node.ip(&format!("route replace {address} dev {device}"))
    }

    /// Gives a pod one more address.
    pub fn add_address(&self, key: &PodKey, address: IpAddr) -> Result<()> {
        self.pod(key)?.ip(Batch::default().address(address, full_length(address), "eth0").as_str())?;
        self.route_to_pod(key, address)
    }

    /// Makes `address` one of the client's: answers to it go there.
    pub fn add_client(&mut self, address: IpAddr) -> Result<()> {
        if !self.clients.insert(address) {
            return Ok(());
        }
        let gateway = if address.is_ipv4() { CLIENT_V4 } else { CLIENT_V6 };
        self.node.ip(&format!("route replace {address} via {gateway} dev eth0 onlink"))
    }
}

/// Delivers locally whatever comes in on `device`.
fn everything_is_here(world: &Namespace, device: &str) -> Result<()> {
    let here =
        format!("rule add iif {device} lookup 100 pref 100\nroute add local default dev lo table 100\n");
    world.ip(&here)?;
    world.ip6(&here)
}

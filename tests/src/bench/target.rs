//! The Services that requests go to, the pods behind them, and the ways there.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{contender::Contender, ends::Workload};
use crate::topology::cluster::{Cluster, Origin};

/// As many as every other Service has.
const ENDPOINTS: u8 = 10;
/// Addresses of a client that has several. One has 64,512 ports towards a NodePort, of which connect(2)
/// takes every other one first; together they are several times the source ports of a node.
const CLIENT_ADDRESSES: u8 = 4;
/// Where the last number of an endpoint's address begins.
const FIRST_ENDPOINT: u8 = 100;

/// A Service whose endpoints are all in one pod, which has an address for each.
#[derive(Clone, Copy, Debug)]
struct Target {
    name: &'static str,
    cluster_ip: Ipv4Addr,
    /// Of the first port; the others follow.
    node_port: u16,
    /// Index of the pod's node.
    node: u8,
    policy: &'static str,
    endpoints: u8,
}

const NEAR: Target = Target {
    name: "near",
    cluster_ip: Ipv4Addr::new(10, 96, 0, 101),
    node_port: 30100,
    node: 0,
    policy: "Cluster",
    endpoints: ENDPOINTS,
};
const FAR: Target = Target {
    name: "far",
    cluster_ip: Ipv4Addr::new(10, 96, 0, 102),
    node_port: 30110,
    node: 1,
    policy: "Cluster",
    endpoints: ENDPOINTS,
};
const KEPT: Target = Target {
    name: "kept",
    cluster_ip: Ipv4Addr::new(10, 96, 0, 103),
    node_port: 30120,
    node: 0,
    policy: "Local",
    endpoints: ENDPOINTS,
};
/// All connections that are masqueraded share the source ports towards one backend.
const SINGLE: Target = Target {
    name: "single",
    cluster_ip: Ipv4Addr::new(10, 96, 0, 104),
    node_port: 30130,
    node: 1,
    policy: "Cluster",
    endpoints: 1,
};

/// A port of a target: what answers behind it.
#[derive(Clone, Copy, Debug)]
struct Port {
    name: &'static str,
    protocol: &'static str,
    service: u16,
    pod: u16,
}

/// In the order of their NodePorts; pods of every test listen on other ports.
const PORTS: [Port; 3] = [
    Port { name: "echo", protocol: "TCP", service: 80, pod: 7080 },
    Port { name: "sink", protocol: "TCP", service: 81, pod: 7081 },
    Port { name: "datagram", protocol: "UDP", service: 53, pod: 7053 },
];

impl Target {
    fn endpoints(self) -> impl Iterator<Item = Ipv4Addr> {
        (0..self.endpoints).map(move |index| endpoint(self.node, index))
    }

    fn objects(self) -> [Value; 2] {
        let Self { name, cluster_ip, node, policy, .. } = self;
        let ports = PORTS.iter().zip(self.node_port..).map(|(port, node_port)| {
            json!({
                "name": port.name, "protocol": port.protocol, "port": port.service,
                "targetPort": port.pod, "nodePort": node_port,
            })
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "type": "NodePort", "clusterIP": cluster_ip, "externalTrafficPolicy": policy,
                "ports": ports.collect::<Vec<_>>(),
            },
        });
        let endpoints = self.endpoints().map(|address| {
            json!({"addresses": [address], "nodeName": format!("node{}", node + 1), "conditions": {"ready": true}})
        });
        let ports = PORTS.map(|port| json!({"name": port.name, "protocol": port.protocol, "port": port.pod}));
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": name},
            },
            "endpoints": endpoints.collect::<Vec<_>>(), "ports": ports,
        });
        [service, slice]
    }
}

fn endpoint(node: u8, index: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, node + 1, FIRST_ENDPOINT + index)
}

/// Everything that has to be written so that requests arrive.
pub fn objects() -> Vec<Value> {
    [NEAR, FAR, KEPT, SINGLE].into_iter().flat_map(Target::objects).collect()
}

/// Gives the first pod of each node the addresses of its endpoints.
pub fn add_addresses(cluster: &Cluster) -> Result<Vec<Vec<IpAddr>>> {
    let mut all = Vec::new();
    for (number, node) in (0u8..).zip(&cluster.nodes) {
        let pod = &node.pods[0];
        let addresses: Vec<Ipv4Addr> = (0..ENDPOINTS).map(|index| endpoint(number, index)).collect();
        for address in &addresses {
            pod.netns.ip(&format!("address add {address}/32 dev eth0"))?;
            node.host.netns.ip(&format!("route add {address}/32 dev {}", pod.name))?;
        }
        all.push(addresses.into_iter().map(IpAddr::from).collect());
    }
    Ok(all)
}

/// From a port of a Service in a pod to one that answers likewise and is of no Service.
const APART: u16 = 100;

/// Ports that a pod listens on, of the Service and apart: those that answer requests, take streams
/// and answer datagrams.
pub fn pod_ports() -> [[u16; 3]; 2] {
    [0, APART].map(|apart| PORTS.map(|port| port.pod + apart))
}

/// From where to where.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// A pod to a ClusterIP, the backend on the same node.
    PodLocal,
    /// A pod to a ClusterIP, the backend on another node.
    PodRemote,
    /// The host to a ClusterIP, the backend on the same node.
    HostLocal,
    /// The host to a ClusterIP, the backend on another node.
    HostRemote,
    /// Outside to a NodePort, the backend on that node, masqueraded (policy Cluster).
    OutsideLocal,
    /// Outside to a NodePort, the backend on that node, with the client's address (policy Local).
    OutsideKept,
    /// Outside to a NodePort, the backend on another node.
    OutsideRemote,
    /// The same, from several addresses to a Service with a single endpoint.
    OutsideSingle,
    /// A pod to a pod's address, and a port of no Service: the proxy has nothing to do.
    PodPod,
}

impl Path {
    /// Those that are compared if none is named.
    pub const USUAL: [Self; 8] = [
        Self::PodLocal,
        Self::PodRemote,
        Self::HostLocal,
        Self::HostRemote,
        Self::OutsideLocal,
        Self::OutsideKept,
        Self::OutsideRemote,
        Self::PodPod,
    ];

    /// As options and reports name it.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Where requests start.
    pub fn origin(self) -> Origin {
        match self {
            Self::PodLocal | Self::PodRemote | Self::PodPod => Origin::Pod(0, 1),
            Self::HostLocal | Self::HostRemote => Origin::Node(0),
            Self::OutsideLocal | Self::OutsideKept | Self::OutsideRemote | Self::OutsideSingle => {
                Origin::Client
            }
        }
    }

    fn target(self) -> Target {
        match self {
            Self::PodLocal | Self::HostLocal | Self::OutsideLocal | Self::PodPod => NEAR,
            Self::OutsideKept => KEPT,
            Self::PodRemote | Self::HostRemote | Self::OutsideRemote => FAR,
            Self::OutsideSingle => SINGLE,
        }
    }

    /// Whether this contender does something of its own here.
    pub fn concerns(self, contender: Contender) -> bool {
        match contender {
            Contender::ShuntAll => true,
            other if !other.is_shunt() => true,
            Contender::ShuntHost => matches!(self, Self::HostLocal | Self::HostRemote),
            Contender::ShuntOff => self.origin() == Origin::Pod(0, 1),
            Contender::ShuntXdp => self.origin() == Origin::Client,
            _ => matches!(self, Self::OutsideRemote | Self::OutsideSingle),
        }
    }

    /// By which addresses the client dials, in turn; by the one that its routes say, if there are none.
    pub fn sources(self, cluster: &Cluster) -> Vec<IpAddr> {
        match self {
            Self::OutsideSingle => client_addresses(cluster).map(IpAddr::from).collect(),
            _ => Vec::new(),
        }
    }

    /// What the client dials. Without a proxy it goes through the endpoints itself.
    pub fn destinations(
        self,
        contender: Contender,
        workload: Workload,
        cluster: &Cluster,
    ) -> Vec<SocketAddr> {
        let target = self.target();
        let place = workload.port();
        let port = PORTS[place];
        if contender == Contender::Direct || self == Self::PodPod {
            let pod = if self == Self::PodPod { port.pod + APART } else { port.pod };
            return target.endpoints().map(|address| SocketAddr::new(address.into(), pod)).collect();
        }
        if self.origin() != Origin::Client {
            return vec![SocketAddr::new(target.cluster_ip.into(), port.service)];
        }
        vec![SocketAddr::new(cluster.nodes[0].host.v4.into(), target.node_port + place as u16)]
    }
}

/// Those of the outside client.
fn client_addresses(cluster: &Cluster) -> impl Iterator<Item = Ipv4Addr> {
    let first = cluster.client.v4.to_bits();
    (0..u32::from(CLIENT_ADDRESSES)).map(move |index| Ipv4Addr::from_bits(first + index))
}

/// Gives the outside client the addresses that it lacks.
pub fn add_client_addresses(cluster: &Cluster) -> Result<()> {
    for address in client_addresses(cluster).skip(1) {
        cluster.client.netns.ip(&format!("address add {address}/24 dev eth0"))?;
    }
    Ok(())
}

/// Makes clients reach pods of both nodes through the first node, there and back, as they do by a
/// NodePort of the first node that masquerades.
pub fn route_through_first_node(cluster: &Cluster) -> Result<()> {
    let first = cluster.nodes[0].host.v4;
    cluster.client.netns.ip(&format!("route add 10.244.0.0/16 via {first}"))?;
    for node in &cluster.nodes[1..] {
        for client in client_addresses(cluster) {
            node.host.netns.ip(&format!("route add {client}/32 via {first}"))?;
        }
    }
    Ok(())
}

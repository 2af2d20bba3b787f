//! The world of a case: the node with its pods, clients and servers everywhere, and the
//! agent. All of it stands before the agent starts.

use super::{
    case::{Case, Flow, Via, addresses},
    objects::{endpoints, slice_ports},
    overdue,
    run::Setting,
};
use crate::{
    agent::{Agent, SocketLb},
    netns::Namespace,
    probe::{Proto, Serve, Worker},
    silence,
    topology::stage::{PodKey, Port, Stage},
};
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

/// A standing world.
#[derive(Debug)]
pub(super) struct Scene {
    // Processes go before the namespaces and the cgroup they live in.
    pub(super) inside: Worker,
    pub(super) outside: Worker,
    pub(super) agent: Agent,
    pub(super) stage: Stage,
    pub(super) socket_lb: SocketLb,
    bridge: Option<String>,
    /// What the node has in any step.
    of_node: BTreeSet<IpAddr>,
}

impl Scene {
    /// Builds what the case needs in any of its steps, and for `more` flows.
    pub(super) fn build(case: &Case, more: &[Flow], setting: &Setting) -> Result<Self> {
        let socket_lb = setting.socket_lb;
        let name = case.node.get("name").and_then(Value::as_str).context("the node has no name")?;
        let addresses = addresses(&case.node).context("the node has no addresses")??;
        let (mut kube_proxy, shunt) = (kube_proxy(&case.config), Agent::small(socket_lb));
        if case.proxy_state.is_some() {
            overdue::configure(&mut kube_proxy);
        }
        let mut agent = Agent::prepare(name, &kube_proxy, &shunt)?;
        let inside = Worker::start(Some(&agent.cgroup))?;
        let outside = Worker::start(None)?;
        let stage = Stage::build(&addresses)?;
        if let Some(api_server) = &setting.api_server {
            // Nothing of the case before.
            api_server.write(&[])?;
            let service_cidrs = case.objects().any(|object| object["kind"] == "ServiceCIDR");
            agent.follow(api_server.show_in(&stage.node, service_cidrs)?);
        }
        let bridge = case.config.get("detectLocal").and_then(|detect| detect["bridgeInterface"].as_str());
        let bridge = bridge.map(str::to_owned);
        let mut scene =
            Self { inside, outside, agent, stage, socket_lb, bridge, of_node: case.node_addresses()? };
        let flows: Vec<_> = case.flows().chain(more).collect();
        scene.add_clients(&flows)?;
        scene.add_endpoints(case, name)?;
        scene.serve(case, &flows)?;
        Ok(scene)
    }

    fn add_clients(&mut self, flows: &[&Flow]) -> Result<()> {
        for flow in flows {
            match flow.via {
                Via::Pod | Via::LocalPod => {
                    let key = self.pod_key(flow);
                    self.stage.add_pod(&key)?;
                    for client in flow.clients().skip(1) {
                        self.stage.add_address(&key, client)?;
                    }
                }
                Via::External | Via::RemotePod => {
                    for client in flow.clients() {
                        self.stage.add_client(client)?;
                    }
                }
                Via::Node => {}
            }
        }
        Ok(())
    }

    fn add_endpoints(&mut self, case: &Case, node: &str) -> Result<()> {
        for endpoint in case.objects().flat_map(endpoints).filter(|endpoint| endpoint.node == Some(node)) {
            // Some cases are about addresses that are none.
            let Ok(address) = endpoint.address.parse() else { continue };
            if self.is_pod_address(address) && self.pod_at(address).is_none() {
                self.stage.add_pod(&PodKey { address, port: Port::Bridge })?;
            }
        }
        Ok(())
    }

    fn is_pod_address(&self, address: IpAddr) -> bool {
        !(self.is_ever_of_node(address) || address.is_unspecified() || address.is_multicast())
    }

    fn is_ever_of_node(&self, address: IpAddr) -> bool {
        self.of_node.contains(&address) || address.is_loopback()
    }

    fn pod_at(&self, address: IpAddr) -> Option<&PodKey> {
        self.stage.pods().map(|(key, _)| key).find(|key| key.address == address)
    }

    /// The pod a flow comes from.
    pub(super) fn pod_key(&self, flow: &Flow) -> PodKey {
        let port = match &flow.iface {
            None => Port::Bridge,
            Some(name) if self.bridge.as_ref() == Some(name) => Port::BridgeNamed(name.clone()),
            Some(name) => Port::Routed(name.clone()),
        };
        PodKey { address: flow.from, port }
    }

    /// The name of the server behind an address nobody translates.
    pub(super) fn server_at(&self, address: IpAddr) -> String {
        if self.stage.is_node_address(address) {
            "node".into()
        } else if self.pod_at(address).is_some() {
            format!("pod {address}")
        } else {
            "sink".into()
        }
    }

    /// Listens everywhere on every port that occurs in the case, so that a packet which
    /// went the wrong way is heard of.
    fn serve(&self, case: &Case, flows: &[&Flow]) -> Result<()> {
        let ports = ports(case, flows);
        let serve = |netns, name: &str, sockets| Serve { netns, name: name.into(), sockets };
        for (key, pod) in self.stage.pods() {
            let name = format!("pod {}", key.address);
            self.inside.serve(serve(pod.path(), &name, everywhere(&ports)))?;
        }
        self.outside.serve(serve(self.stage.sink.path(), "sink", everywhere(&ports)))?;
        let held =
            case.host_listeners.iter().map(|held| (held.proto, SocketAddr::new(held.address, held.port)));
        let held: Vec<_> = held.collect();
        // The ports of the node are shared with the agent, so only those are taken that
        // the case sends something to.
        let destinations = flows.iter().map(|flow| (flow.proto, flow.to));
        let destinations = destinations.filter(|(_, to)| self.is_ever_of_node(to.ip()));
        let on_node: BTreeSet<_> = destinations.chain(self.node_endpoints(case)).collect();
        let free = on_node.into_iter().filter(|socket| !held.iter().any(|held| covers(held, socket)));
        let sockets = free.chain(held.iter().copied()).collect();
        self.inside.serve(serve(self.stage.node.path(), "node", sockets))
    }

    fn node_endpoints(&self, case: &Case) -> Vec<(Proto, SocketAddr)> {
        let slices = case.objects().flat_map(|object| {
            let addresses = endpoints(object).filter_map(|endpoint| endpoint.address.parse::<IpAddr>().ok());
            let here: Vec<_> = addresses.filter(|address| self.is_ever_of_node(*address)).collect();
            let ports = slice_ports(object).filter_map(|(proto, port)| Some((proto_named(proto)?, port)));
            ports.flat_map(move |(proto, port)| {
                here.clone().into_iter().map(move |address| (proto, SocketAddr::new(address, port)))
            })
        });
        slices.collect()
    }

    /// What SYNs have led to in any namespace so far: silence means that none more come, not even
    /// for a handshake that fails.
    pub(super) fn openings(&self) -> Result<u64> {
        self.namespaces().map(|namespace| namespace.run(silence::openings)).sum()
    }

    /// Waits until the connections of earlier flows have exchanged their last segments.
    pub(super) fn quiesce(&self) -> Result<()> {
        silence::quiesce(&self.namespaces().collect::<Vec<_>>())
    }

    fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        let stage = &self.stage;
        stage.pods().map(|(_, pod)| pod).chain([&stage.node, &stage.client, &stage.sink])
    }
}

/// The harness's defaults with the case's configuration on top.
pub(super) fn kube_proxy(config: &Map<String, Value>) -> Value {
    let mut defaults = json!({"detectLocalMode": "ClusterCIDR", "clusterCIDR": "10.0.0.0/8,fd00:10::/32"});
    if let Some(defaults) = defaults.as_object_mut() {
        defaults.extend(config.clone());
    }
    defaults
}

/// The protocol that Kubernetes calls so.
pub(super) fn proto_named(name: &str) -> Option<Proto> {
    serde_json::from_value(json!(name)).ok()
}

fn ports(case: &Case, flows: &[&Flow]) -> BTreeSet<(Proto, u16)> {
    let slices = case.objects().flat_map(slice_ports);
    let slices = slices.filter_map(|(proto, port)| Some((proto_named(proto)?, port)));
    let flows = flows.iter().map(|flow| (flow.proto, flow.to.port()));
    slices.chain(flows).collect()
}

fn everywhere(ports: &BTreeSet<(Proto, u16)>) -> Vec<(Proto, SocketAddr)> {
    let any = |port| [SocketAddr::from(([0; 4], port)), SocketAddr::from(([0u16; 8], port))];
    ports.iter().flat_map(|(proto, port)| any(*port).map(|address| (*proto, address))).collect()
}

fn covers(held: &(Proto, SocketAddr), socket: &(Proto, SocketAddr)) -> bool {
    let same = held.0 == socket.0 && held.1.port() == socket.1.port();
    same && (held.1.ip() == socket.1.ip() || held.1.ip().is_unspecified())
}

//! The ways of packets that only pass a node, seen from the network between.

use crate::{
    capture::{Capture, Seen},
    world::{LINE, Open, answer},
};
use anyhow::{Context, Result, ensure};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore},
    kernel::{KernelAddr, KernelMaps, Pins},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};
use tests::{
    agent::{Agent, SocketLb},
    manifests,
    probe::{Bulk, Dial},
    topology::cluster::{Cluster, Host, Origin::Client},
};

/// NodePorts of node 2 whose only backend is on node 1.
const THROUGH: [&str; 2] = ["192.168.50.12:30190", "[fd00:50::12]:30190"];

fn cluster(mode: &str, xdp: &str) -> Result<Cluster> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["loadBalancer"] = json!({"mode": mode});
    shunt["xdp"] = xdp.into();
    started(2, &shunt)
}

fn started(nodes: u8, shunt: &Value) -> Result<Cluster> {
    // Room for tables of their full size: with a map that fills up an agent makes it larger, and the
    // tables with it, which lead some clients elsewhere.
    let mut shunt = shunt.clone();
    shunt["maps"]["slots"] = json!(1 << 19);
    let mut cluster = Cluster::build(nodes, &shunt)?;
    cluster.wire()?;
    let mut objects = manifests::two_nodes()?;
    // A node without endpoints.
    objects.push(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node3"},
        "status": {"addresses": [
            {"type": "InternalIP", "address": "192.168.50.13"}, {"type": "InternalIP", "address": "fd00:50::13"},
        ]},
    }));
    cluster.start(&objects)?;
    Ok(cluster)
}

/// The link-layer address of a machine's uplink.
fn mac(host: &Host) -> Result<[u8; 6]> {
    let text = host.netns.output("ip", &["-brief", "link", "show", "eth0"])?;
    let field = text.split_whitespace().nth(2).with_context(|| text.clone())?;
    let bytes = field.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<Vec<_>, _>>()?;
    bytes.try_into().map_err(|_| anyhow::anyhow!("{text}"))
}

/// Who sent what to whom during one exchange.
struct Way {
    client: [u8; 6],
    nodes: [[u8; 6]; 2],
    packets: Vec<Seen>,
}

impl Way {
    fn of(cluster: &Cluster, to: &str) -> Result<Self> {
        // Neighbours are resolved, so that drivers can send at once.
        answer(cluster, Client, LINE, to)?;
        let capture = Capture::start(cluster.far_end(0).0)?;
        answer(cluster, Client, LINE, to)?;
        let macs = [mac(&cluster.nodes[0].host)?, mac(&cluster.nodes[1].host)?];
        let to: SocketAddr = to.parse()?;
        let port = |seen: &Seen| {
            seen.ports.is_some_and(|(s, d)| [s, d].iter().any(|p| [to.port(), 9090].contains(p)))
        };
        let packets = capture.packets().into_iter().filter(port).collect();
        let way = Self { client: mac(&cluster.client)?, nodes: macs, packets };
        way.print();
        Ok(way)
    }

    fn print(&self) {
        for packet in &self.packets {
            println!("{packet}");
        }
    }

    fn between(&self, from: [u8; 6], to: [u8; 6]) -> Vec<&Seen> {
        self.packets.iter().filter(|seen| seen.from == from && seen.to == to).collect()
    }
}

#[test]
fn by_dsr_requests_make_a_detour_and_replies_do_not() -> Result<()> {
    for xdp in ["off", "native"] {
        let cluster = cluster("dsr", xdp)?;
        for to in THROUGH {
            println!("DSR, XDP {xdp}, {to}");
            let way = Way::of(&cluster, to)?;
            let [backend, reached] = way.nodes;
            let (vip, client) = (to.parse::<SocketAddr>()?.ip(), address(&cluster, to)?);
            let pod: IpAddr = if vip.is_ipv4() {
                cluster.nodes[0].pods[0].v4.into()
            } else {
                cluster.nodes[0].pods[0].v6.into()
            };
            let requests = way.between(reached, backend);
            ensure!(!requests.is_empty(), "no requests between the nodes");
            for request in requests {
                let [(_, outer), inner] = request.ips[..] else {
                    anyhow::bail!("not encapsulated: {request}")
                };
                ensure!(outer == pod && inner == (client, vip), "{request}");
            }
            let replies = way.between(backend, way.client);
            ensure!(
                !replies.is_empty() && replies.iter().all(|reply| reply.ips == [(vip, client)]),
                "{replies:?}"
            );
            ensure!(way.between(reached, way.client).is_empty() && way.between(backend, reached).is_empty());
        }
    }
    Ok(())
}

#[test]
fn by_snat_both_directions_make_it() -> Result<()> {
    for xdp in ["off", "native"] {
        let cluster = cluster("snat", xdp)?;
        for to in THROUGH {
            println!("SNAT, XDP {xdp}, {to}");
            let way = Way::of(&cluster, to)?;
            let [backend, reached] = way.nodes;
            for (from, to) in
                [(way.client, reached), (reached, backend), (backend, reached), (reached, way.client)]
            {
                ensure!(!way.between(from, to).is_empty(), "a leg is missing");
            }
            ensure!(way.between(backend, way.client).is_empty(), "a reply went past the node");
        }
    }
    Ok(())
}

fn address(cluster: &Cluster, to: &str) -> Result<IpAddr> {
    let to: SocketAddr = to.parse()?;
    Ok(if to.is_ipv4() { cluster.client.v4.into() } else { cluster.client.v6.into() })
}

#[test]
fn a_node_that_forgot_a_connection_finds_its_backend_again() -> Result<()> {
    // With two backends on the other nodes, chance would miss half of the time.
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["loadBalancer"] = json!({"mode": "dsr"});
    let cluster = started(3, &shunt)?;
    for to in ["192.168.50.13:30090", "[fd00:50::13]:30090"] {
        let open: Vec<_> =
            (0..20).map(|number| Open::numbered(&cluster, Client, to, number)).collect::<Result<_>>()?;
        let before: Vec<_> = open.iter().map(|open| open.send(Bulk::default())).collect::<Result<_>>()?;
        let servers: BTreeSet<_> = before.iter().map(|answer| &answer.server).collect();
        ensure!(servers.len() == 2, "{servers:?}");
        let mut maps = KernelMaps::open(&Pins::new(cluster.nodes[2].agent.pins()))?;
        let forgotten = forget(maps.v4())? + forget(maps.v6())?;
        ensure!(forgotten >= open.len(), "{forgotten} rows");
        for (open, before) in open.iter().zip(&before) {
            let after = open.outlives(Bulk { up: 100_000, down: 1000 })?;
            ensure!(after.server == before.server, "{after} after {before}");
        }
    }
    Ok(())
}

#[test]
fn every_node_leads_a_client_to_the_same_backend() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["loadBalancer"] = json!({"algorithm": "maglev"});
    let cluster = started(3, &shunt)?;
    let server = |to: &str, port: u16| -> Result<String> {
        let (host, worker) = cluster.host(Client);
        let dial = Dial { source_port: Some(port), ..Dial::new(&host.netns, LINE, to.parse()?) };
        Ok(worker.dial(&dial)?.remove(0).answer(format_args!("{to} from port {port}"))?.server)
    };
    for node in [
        ["192.168.50.11", "192.168.50.12", "192.168.50.13"],
        ["[fd00:50::11]", "[fd00:50::12]", "[fd00:50::13]"],
    ] {
        let mut servers = BTreeSet::new();
        for port in 50_000..50_016 {
            let [one, two, three] = node.map(|node| server(&format!("{node}:30090"), port));
            let (one, two, three) = (one?, two?, three?);
            ensure!(one == two && two == three, "port {port}: {one}, {two}, {three}");
            servers.insert(one);
        }
        ensure!(servers.len() == 2, "{servers:?}");
    }
    Ok(())
}

/// Deletes all connections of a node.
fn forget<A: KernelAddr>(maps: &mut impl FamilyMaps<A>) -> Result<usize> {
    let mut keys = Vec::new();
    maps.each_conntrack(&mut |key, _| keys.push(*key))?;
    maps.delete_conntrack(&keys)?;
    Ok(keys.len())
}

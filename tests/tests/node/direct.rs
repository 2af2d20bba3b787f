//! Connections to backends themselves, and of other NATs, beside those to services: no two of them
//! may meet in one tuple.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tests::{
    agent::{Agent, SocketLb},
    probe::{Outcome, Proto, Serve},
    topology::cluster::{
        Cluster,
        Origin::{self, Client, Pod},
    },
};

use crate::{
    socket::{Socket, dial},
    world::{configured, two_nodes},
};

/// A service with one backend, on the first node, and that backend.
const ENDS: [(Proto, &str, &str); 4] = [
    (Proto::Tcp, "10.96.0.20:90", "10.244.1.10:9090"),
    (Proto::Tcp, "[fd00:96::20]:90", "[fd00:244:1::10]:9090"),
    (Proto::Udp, "10.96.0.20:53", "10.244.1.10:5353"),
    (Proto::Udp, "[fd00:96::20]:53", "[fd00:244:1::10]:5353"),
];
/// Beside the backend, and on the other node.
const CLIENTS: [Origin; 2] = [Pod(0, 1), Pod(1, 1)];

/// For each kind of connection and each client, by ports of its own.
fn each(cluster: &Cluster, test: impl Fn(Origin, u16, Proto, &str, &str) -> Result<()>) -> Result<()> {
    for from in CLIENTS {
        for (i, (proto, service, backend)) in ENDS.into_iter().enumerate() {
            // One that is masqueraded, and one that is an ephemeral port.
            for port in [20_000, 50_000] {
                test(from, port + i as u16, proto, service, backend)
                    .with_context(|| format!("{from:?}, {proto}, {service}"))?;
            }
        }
    }
    ensure!(cluster.nodes.iter().all(|node| node.agent.is_running()), "an agent has ended");
    Ok(())
}

#[test]
fn a_backend_is_asked_by_the_port_of_an_open_connection_to_its_service() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    each(&cluster, |from, port, proto, service, backend| {
        let first = Socket::open(&cluster, from, port, proto, service)?;
        let second = Socket::open(&cluster, from, port, proto, backend)?;
        for _ in 0..3 {
            first.answers()?;
            second.answers()?;
        }
        Ok(())
    })
}

#[test]
fn a_service_is_asked_by_the_port_of_an_open_connection_to_its_backend() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    each(&cluster, |from, port, proto, service, backend| {
        let first = Socket::open(&cluster, from, port, proto, backend)?;
        let second = Socket::open(&cluster, from, port, proto, service)?;
        for _ in 0..3 {
            first.answers()?;
            second.answers()?;
        }
        Ok(())
    })
}

#[test]
fn a_backend_is_asked_by_the_port_of_a_closed_connection_to_its_service() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    each(&cluster, |from, port, proto, service, backend| {
        if proto == Proto::Udp {
            return Ok(());
        }
        for port in (port..).step_by(10).take(5) {
            dial(&cluster, from, port, proto, service, None)?;
            dial(&cluster, from, port, proto, backend, None)?;
        }
        Ok(())
    })
}

/// Netfilter takes any port from 1024 on, which may be a NodePort.
#[test]
fn a_pod_reaches_the_outside_masqueraded_by_the_number_of_a_node_port() -> Result<()> {
    for algorithm in ["random", "maglev"] {
        let mut shunt = Agent::small(SocketLb::Off);
        shunt["loadBalancer"] = json!({"algorithm": algorithm});
        reach_the_outside(&configured(&shunt)?).context(algorithm)?;
    }
    Ok(())
}

fn reach_the_outside(cluster: &Cluster) -> Result<()> {
    let client = &cluster.client;
    let sockets = vec![(Proto::Tcp, "0.0.0.0:9090".parse()?), (Proto::Udp, "0.0.0.0:5353".parse()?)];
    cluster.outside.serve(Serve { netns: client.netns.path(), name: "outside".into(), sockets })?;
    cluster.nodes[0].host.netns.nft(
        "table ip others {
            chain out {
                type nat hook postrouting priority 100
                ip saddr 10.244.1.0/24 oifname eth0 udp dport 5353 masquerade to :30053
                ip saddr 10.244.1.0/24 oifname eth0 tcp dport 9090 masquerade to :30090
            }
        }",
    )?;
    let to = |port: u16| format!("{}:{port}", client.v4);
    for (proto, port) in [(Proto::Udp, 5353), (Proto::Tcp, 9090)] {
        let socket = Socket::open(cluster, Pod(0, 1), 40_000, proto, &to(port))?;
        for _ in 0..3 {
            socket.answers()?;
        }
    }
    // The NodePorts are served as before, also for whoever was asked by them.
    for to in ["192.168.50.11:30053", "192.168.50.11:30090"] {
        let proto = if to.ends_with("53") { Proto::Udp } else { Proto::Tcp };
        let outcome = cluster.dial(Client, proto, to.parse()?, 1)?.remove(0);
        ensure!(matches!(outcome, Outcome::Answered(_)), "{to}: {outcome}");
    }
    Ok(())
}

//! What the addresses of services do besides leading to backends.

use crate::{
    reload::{kube_proxy, wait_in_force},
    world::{answer, soon, two_nodes},
};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::process::Command;
use tests::{
    agent::{Agent, SocketLb},
    late,
    netns::Namespace,
    probe::{Proto, Serve},
    process::Spawn,
    topology::cluster::{
        Cluster,
        Origin::{self, Client, Node, Pod},
    },
};

const MODES: [SocketLb; 3] = [SocketLb::All, SocketLb::Host, SocketLb::Off];

/// Sends one echo request. Status 1 says that no reply came; if an error did, that is printed.
fn ping(netns: &Namespace, address: &str) -> Result<()> {
    let mut command = Command::new("ping");
    command.args(["-n", "-c", "1", "-W", "10", address]);
    let output = command.netns(netns)?.output().context("start ping")?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let is_silent = output.status.code() == Some(1) && said.contains(" 0 received, 100% packet loss");
    ensure!(!is_silent, late!("{address}: no answer: {said}"));
    ensure!(output.status.success(), "{address}: {said}");
    Ok(())
}

#[test]
fn cluster_ips_answer_ping() -> Result<()> {
    for mode in MODES {
        let cluster = two_nodes(mode)?;
        for from in [Pod(0, 1), Node(0)] {
            for address in ["10.96.0.20", "fd00:96::20"] {
                let netns = &cluster.host(from).0.netns;
                ping(netns, address)?;
            }
        }
    }
    Ok(())
}

/// Listens in the namespace of `origin`, as any other process of the node would.
fn listen(cluster: &Cluster, origin: Origin, proto: Proto, at: &str) -> Result<()> {
    let (host, worker) = cluster.host(origin);
    let sockets = vec![(proto, at.parse()?)];
    worker.serve(Serve { netns: host.netns.path(), name: "intruder".into(), sockets })
}

#[test]
fn node_ports_cannot_be_bound_by_others() -> Result<()> {
    for mode in MODES {
        let cluster = two_nodes(mode)?;
        for at in ["0.0.0.0:30080", "[::]:30080", "192.168.50.11:30080", "[fd00:50::11]:30080"] {
            let refused = listen(&cluster, Node(0), Proto::Tcp, at).expect_err(at).to_string();
            assert!(refused.contains("in use"), "{mode:?} {at}: {refused}");
        }
        listen(&cluster, Node(0), Proto::Tcp, "0.0.0.0:30999")?;
        listen(&cluster, Node(0), Proto::Udp, "127.0.0.1:30080")?;
        listen(&cluster, Node(0), Proto::Tcp, "127.0.0.1:30080")?;
        listen(&cluster, Pod(0, 1), Proto::Tcp, "0.0.0.0:30080")?;
    }
    Ok(())
}

/// Whoever binds one sees nothing of it: the Service is served as before.
#[test]
fn node_ports_can_be_bound_where_the_configuration_allows_it() -> Result<()> {
    for mode in MODES {
        let cluster = two_nodes(mode)?;
        let node = &cluster.nodes[0];
        let mut shunt = Agent::small(mode);
        shunt["reserveNodePorts"] = false.into();
        node.agent.configure(&kube_proxy(json!({})), &shunt)?;
        wait_in_force(node)?;
        for at in ["0.0.0.0:30190", "[::]:30190"] {
            soon(|| listen(&cluster, Node(0), Proto::Tcp, at))?;
        }
        let answer = answer(&cluster, Client, Proto::Tcp, "192.168.50.11:30190")?;
        ensure!(answer.server != "intruder", "{mode:?}: {answer}");
        node.agent.configure(&kube_proxy(json!({})), &Agent::small(mode))?;
        wait_in_force(node)?;
        soon(|| {
            let refused = listen(&cluster, Node(0), Proto::Tcp, "0.0.0.0:30080").err();
            ensure!(
                refused.is_some_and(|e| e.to_string().contains("in use")),
                late!("{mode:?}: it was bound")
            );
            Ok(())
        })?;
    }
    Ok(())
}

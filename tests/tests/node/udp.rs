//! Long-lived connected UDP sockets under socket LB: no hook runs when they send, so they
//! are destroyed when their backend goes; their programs get an error and connect anew.

use crate::world::{answer, soon, two_nodes};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tests::{
    agent::{Line, SocketLb},
    late, manifests,
    probe::{Bulk, Dial, Exchange, Outcome, PATIENCE_MS, Proto},
    topology::cluster::{
        Cluster,
        Origin::{self, Node, Pod},
    },
};

const SERVICE: [&str; 2] = ["10.96.0.20:53", "[fd00:96::20]:53"];
const ORIGINS: [Origin; 2] = [Pod(0, 1), Node(0)];

/// Sockets of a program that connects once and then only sends.
pub(crate) fn connect(cluster: &Cluster) -> Result<()> {
    for (from, to) in everyone() {
        let (host, worker) = cluster.host(from);
        let dial = Dial { keep: Some(name(from, to)), ..Dial::new(&host.netns, Proto::Udp, to.parse()?) };
        worker.dial(&dial)?.remove(0).answer(name(from, to))?;
    }
    Ok(())
}

/// Every origin's sockets to the service, and one to a backend by its own address.
fn everyone() -> impl Iterator<Item = (Origin, &'static str)> {
    ORIGINS.into_iter().flat_map(|from| [SERVICE[0], SERVICE[1], BYSTANDER].map(|to| (from, to)))
}

/// Not translated, and therefore nobody's business.
const BYSTANDER: &str = "10.244.1.10:5353";

fn name(from: Origin, to: &str) -> String {
    format!("{from:?} → {to} UDP")
}

fn send(cluster: &Cluster, from: Origin, to: &str) -> Result<Outcome> {
    let (_, worker) = cluster.host(from);
    worker.exchange(Exchange { keep: name(from, to), timeout_ms: PATIENCE_MS, bulk: Bulk::default() })
}

/// The sockets to the service get an error, those past it do not.
pub(crate) fn service_sockets_fail(cluster: &Cluster) -> Result<()> {
    for (from, to) in everyone() {
        if to == BYSTANDER {
            send(cluster, from, to)?.answer(name(from, to))?;
            continue;
        }
        soon(|| is_told(&send(cluster, from, to)?).with_context(|| name(from, to)))?;
    }
    Ok(())
}

/// The program got the error that tells of the end of its backend.
pub(crate) fn is_told(outcome: &Outcome) -> Result<()> {
    match outcome {
        Outcome::Failed(reason) => {
            // Whoever waits in a call gets ECONNABORTED, whoever sends next EDESTADDRREQ.
            let errors = ["connection abort", "Destination address required"];
            ensure!(errors.iter().any(|error| reason.contains(error)), "{reason}");
            Ok(())
        }
        Outcome::TimedOut => bail!(late!("neither an answer nor an error")),
        other => bail!("{other}"),
    }
}

/// Both slices of the service.
fn slices(objects: &mut [Value]) -> Result<[&mut Value; 2]> {
    let [mut v4, mut v6] = [None, None];
    for object in objects.iter_mut().filter(|object| object["kind"] == "EndpointSlice") {
        match object["metadata"]["name"].as_str() {
            Some("one-4") => v4 = Some(object),
            Some("one-6") => v6 = Some(object),
            _ => {}
        }
    }
    match (v4, v6) {
        (Some(v4), Some(v6)) => Ok([v4, v6]),
        _ => bail!("the slices of the service are not there"),
    }
}

pub(crate) fn move_to_node_2(objects: &mut [Value]) -> Result<()> {
    let [v4, v6] = slices(objects)?;
    v4["endpoints"][0]["addresses"][0] = "10.244.2.10".into();
    v6["endpoints"][0]["addresses"][0] = "fd00:244:2::10".into();
    Ok(())
}

pub(crate) fn write(cluster: &mut Cluster, objects: &[Value]) -> Result<()> {
    cluster.nodes[0].agent.write(objects)
}

pub(crate) fn everyone_reaches(cluster: &Cluster, server: &str) -> Result<()> {
    for (from, to) in everyone().filter(|(_, to)| *to != BYSTANDER) {
        assert_eq!(answer(cluster, from, Proto::Udp, to)?.server, server);
    }
    Ok(())
}

#[test]
fn connected_udp_clients_follow_to_the_new_backend() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    connect(&cluster)?;
    let mut objects = manifests::two_nodes()?;
    move_to_node_2(&mut objects)?;
    write(&mut cluster, &objects)?;
    service_sockets_fail(&cluster)?;
    everyone_reaches(&cluster, "pod2-1")?;
    let said = "destroyed connected UDP sockets whose backend is gone";
    let total = |line: &Line| line.field("total").as_u64().filter(|_| line.message() == said);
    let agent = &cluster.nodes[0].agent;
    agent.wait_for_or("4 sockets destroyed", |line| total(line) == Some(4), |line| total(line) > Some(4))
}

#[test]
fn connected_udp_clients_learn_that_nobody_is_there() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    connect(&cluster)?;
    let mut objects = manifests::two_nodes()?;
    slices(&mut objects)?.into_iter().for_each(|slice| slice["endpoints"] = json!([]));
    write(&mut cluster, &objects)?;
    service_sockets_fail(&cluster)?;
    for (from, to) in everyone().filter(|(_, to)| *to != BYSTANDER) {
        assert_eq!(cluster.dial(from, Proto::Udp, to.parse()?, 1)?, [Outcome::Refused]);
    }
    Ok(())
}

#[test]
fn connected_udp_clients_of_a_deleted_service_are_told() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    connect(&cluster)?;
    let mut objects = manifests::two_nodes()?;
    objects.retain(|object| object["kind"] != "Service" || object["metadata"]["name"] != "one");
    write(&mut cluster, &objects)?;
    service_sockets_fail(&cluster)
}

#[test]
fn connected_udp_clients_follow_what_changed_while_no_agent_ran() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    connect(&cluster)?;
    let mut objects = manifests::two_nodes()?;
    move_to_node_2(&mut objects)?;
    cluster.nodes[0].agent.stop()?;
    write(&mut cluster, &objects)?;
    let node = &mut cluster.nodes[0];
    node.agent.start(&node.host.netns)?;
    service_sockets_fail(&cluster)?;
    everyone_reaches(&cluster, "pod2-1")
}

//! The agent with exactly the rights that the manifests under `deploy` give to it: traffic
//! flows, a restart adopts what is there, and nothing is complained of.

use crate::{
    udp,
    world::{LINE, answer},
};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{fs, path::Path};
use tests::{
    agent::{Agent, Line, SocketLb},
    confine::Confinement,
    manifests,
    topology::cluster::{
        Cluster,
        Origin::{self, Client, Node, Pod},
    },
};

/// One origin for every hook.
const WAYS: [(Origin, &str); 6] = [
    (Pod(1, 1), "10.96.0.20:90"),
    (Pod(1, 1), "[fd00:96::20]:90"),
    (Node(1), "10.96.0.20:90"),
    (Node(1), "192.168.50.12:30190"),
    (Client, "192.168.50.12:30190"),
    (Client, "[fd00:50::12]:30190"),
];

fn deploy(file: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// An object that the chart renders by default.
fn rendered(kind: &str) -> Result<Value> {
    let objects = manifests::parse(&deploy("kustomize/base/shunt.yaml")?)?;
    objects.into_iter().find(|object| object["kind"] == kind).with_context(|| format!("no {kind}"))
}

/// What the DaemonSet of the chart grants.
fn of_the_chart() -> Result<Confinement> {
    Confinement::of(&rendered("DaemonSet")?)?.context("the container is privileged")
}

/// The chart's configuration, with the networks of the test.
fn configuration() -> Result<Value> {
    let map = rendered("ConfigMap")?;
    let documents = manifests::parse(map["data"]["config.yaml"].as_str().context("config.yaml")?)?;
    let mut kube_proxy = documents.into_iter().next().context("no document")?;
    kube_proxy["clusterCIDR"] = "10.244.0.0/16,fd00:244::/32".into();
    Ok(kube_proxy)
}

/// The same without leave to enter pods.
fn of_the_unit() -> Result<Confinement> {
    Confinement::of_unit(&deploy("systemd/shunt.service")?)
}

fn cluster(shunt: &Value, confinement: &Confinement) -> Result<Cluster> {
    let mut cluster = Cluster::build(2, shunt)?;
    cluster.wire()?;
    for node in &mut cluster.nodes {
        node.agent.configure(&configuration()?, shunt)?;
        node.agent.confine(confinement.clone());
    }
    cluster.start(&manifests::two_nodes()?)?;
    Ok(cluster)
}

fn all_work(cluster: &Cluster) -> Result<()> {
    WAYS.iter().try_for_each(|(from, to)| answer(cluster, *from, LINE, to).map(drop))
}

/// Whatever is refused is told, and whatever is told is a warning.
fn nothing_is_missing(agent: &Agent) -> Result<()> {
    let complaints: Vec<String> = agent
        .lines()
        .into_iter()
        .filter(|line| ["WARN", "ERROR"].contains(&line.level()))
        .map(|line| line.text().to_owned())
        // These are this machine's, whatever the rights of the agent.
        .filter(|line| !["snatPortRange", "oomScoreAdj"].iter().any(|about| line.contains(about)))
        .collect();
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}

#[test]
fn the_units_capabilities_are_enough_for_every_hook() -> Result<()> {
    for (socket_lb, attach) in [(SocketLb::All, "tcx"), (SocketLb::Off, "tcx"), (SocketLb::Off, "clsact")] {
        let mut shunt = Agent::small(socket_lb);
        shunt["attach"] = attach.into();
        shunt["xdp"] = "native".into();
        let mut cluster = cluster(&shunt, &of_the_unit()?)?;
        all_work(&cluster)?;
        let node = &mut cluster.nodes[1];
        node.agent.stop()?;
        node.agent.start(&node.host.netns)?;
        node.agent.wait_adopted()?;
        all_work(&cluster)?;
        nothing_is_missing(&cluster.nodes[1].agent).with_context(|| format!("{socket_lb:?}, {attach}"))?;
    }
    Ok(())
}

#[test]
fn the_charts_rights_reach_the_sockets_of_pods() -> Result<()> {
    let confinement = of_the_chart()?;
    ensure!(confinement.has("SYS_ADMIN"), "it takes that to enter a network namespace");
    let mut cluster = cluster(&Agent::small(SocketLb::All), &confinement)?;
    udp::connect(&cluster)?;
    let mut objects = manifests::two_nodes()?;
    udp::move_to_node_2(&mut objects)?;
    udp::write(&mut cluster, &objects)?;
    udp::service_sockets_fail(&cluster)?;
    udp::everyone_reaches(&cluster, "pod2-1")?;
    nothing_is_missing(&cluster.nodes[0].agent)
}

#[test]
fn without_leave_to_enter_pods_the_agent_says_so_once() -> Result<()> {
    let mut cluster = cluster(&Agent::small(SocketLb::All), &of_the_unit()?)?;
    udp::connect(&cluster)?;
    let mut objects = manifests::two_nodes()?;
    udp::move_to_node_2(&mut objects)?;
    udp::write(&mut cluster, &objects)?;
    cluster.nodes[0].agent.wait_in_sync()?;
    udp::everyone_reaches(&cluster, "pod2-1")?;
    // Those of the host it destroys all the same.
    let agent = &cluster.nodes[0].agent;
    let total = |line: &Line| line.field("total").as_u64();
    agent.wait_for_or(
        "two sockets destroyed",
        |line| total(line) == Some(2),
        |line| total(line) > Some(2),
    )?;
    let told = |line: &Line| line.level() == "WARN" && line.text().contains("CAP_SYS_ADMIN");
    agent.wait_for("what it cannot do", told)?;
    assert_eq!(agent.lines().iter().filter(|line| told(line)).count(), 1);
    Ok(())
}

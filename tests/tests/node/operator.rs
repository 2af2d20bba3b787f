//! What an operator sees, and what a mistake in a manifest does.

use crate::world::{LINE, Open, answer, two_nodes};
use anyhow::{Context, Result};
use serde_json::Value;
use tests::{
    agent::{Line, SocketLb},
    topology::cluster::{
        Cluster,
        Origin::{Client, Pod},
    },
};

pub(crate) fn list(cluster: &Cluster, node: usize, what: &str) -> Result<Vec<Value>> {
    let node = &cluster.nodes[node];
    let text = node.agent.shunt(&node.host.netns, &[what, "list", "-o", "json"])?;
    serde_json::from_str(&text).with_context(|| text)
}

#[test]
fn services_and_connections_have_names_without_an_agent() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    let _open = Open::new(&cluster, Client, "192.168.50.12:30190")?;
    for node in &mut cluster.nodes {
        node.agent.stop()?;
    }
    let services = list(&cluster, 1, "service")?;
    let one = services.iter().find(|row| row["service"] == "demo/one:line" && row["kind"] == "NodePort");
    let one = one.context("the NodePort of demo/one:line")?;
    assert_eq!((&one["port"], &one["protocol"]), (&30190.into(), &"TCP".into()), "{one}");
    let connections = list(&cluster, 1, "conn")?;
    let open = connections.iter().find(|row| row["service"] == "demo/one:line").context("the connection")?;
    assert_eq!(open["frontend"], "192.168.50.12:30190", "{open}");
    assert_eq!(open["backend"], "10.244.1.10:9090", "{open}");
    let client = format!("{}:", cluster.client.v4);
    assert!(open["client"].as_str().is_some_and(|shown| shown.starts_with(&client)), "{open}");
    Ok(())
}

#[test]
fn a_mistake_in_a_manifest_harms_nothing_else() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    for (name, text) in [
        ("garbage.yaml", "kind: [Service\n"),
        (
            "service.yaml",
            "apiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: demo}\nspec: {clusterIP: 1.2.3}\n",
        ),
        (
            "slice.yaml",
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: lost, namespace: demo, \
             labels: {kubernetes.io/service-name: nowhere}}\naddressType: IPv4\nendpoints: [{addresses: [10.244.1.10]}]\n\
             ports: [{port: 1}]\n",
        ),
    ] {
        let node = &mut cluster.nodes[0];
        node.agent.write_text(name, text)?;
        node.agent.wait_in_sync()?;
        answer(&cluster, Pod(0, 1), LINE, "10.96.0.20:90").context(name)?;
    }
    let agent = &cluster.nodes[0].agent;
    agent.wait_for("a complaint about garbage.yaml", |line| {
        line.level() == "WARN" && line.text().contains("garbage.yaml")
    })?;
    agent.wait_for("a complaint about the service", |line| {
        line.level() == "WARN" && line.field("name") == "bad"
    })?;
    let counted = |line: &Line| [line.field("rejected").as_u64(), line.field("unreadable").as_u64()];
    agent.wait_for_or(
        "one rejected object and one unreadable file",
        |line| line.message() == "in sync" && counted(line) == [Some(1); 2],
        |line| counted(line).iter().any(|count| *count > Some(1)),
    )
}

//! What the lists show of a node that did something, with and without its agent.

use crate::world::{LINE, Open, answer, is_served, soon, two_nodes};
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::{
    agent::SocketLb,
    manifests,
    topology::cluster::{
        Node,
        Origin::{Client, Pod},
    },
};

fn text(node: &Node, line: &str) -> Result<String> {
    node.agent.shunt(&node.host.netns, &line.split(' ').collect::<Vec<_>>())
}

fn list(node: &Node, line: &str) -> Result<Vec<Value>> {
    let text = text(node, &format!("{line} -o json"))?;
    serde_json::from_str(&text).with_context(|| text)
}

fn find<'a>(rows: &'a [Value], field: &str, wanted: &str) -> Result<&'a Value> {
    rows.iter().find(|row| row[field] == wanted).with_context(|| format!("no {field} {wanted} in {rows:#?}"))
}

fn backends_are_listed(node: &Node) -> Result<()> {
    let backends = list(node, "backend list --service demo/one --family ipv4 --protocol tcp")?;
    let line = find(&backends, "address", "10.244.1.10:9090")?;
    let services = line["services"].as_array().context("services")?;
    ensure!(services.contains(&json!("demo/one:line")), "{line}");
    ensure!((&line["local"], &line["state"]) == (&json!(false), &json!("in-use")), "{line}");
    ensure!(line["connections"].as_u64() >= Some(1), "{line}");
    ensure!(list(node, "backend list --service demo/one --local")?.is_empty(), "{backends:?}");
    let here = list(node, "backend list --local")?;
    find(&here, "address", "10.244.2.10:9090")?;
    Ok(())
}

fn connections_are_listed(node: &Node, client: &str) -> Result<()> {
    let connections =
        list(node, &format!("conn list --service demo/one:line --address {client} --state established"))?;
    let [open] = &connections[..] else { anyhow::bail!("not one connection: {connections:#?}") };
    let expires = open["expiresSeconds"].as_u64().context("expires")?;
    // The default is a day; the test takes less than an hour.
    ensure!((23 * 3600..=24 * 3600).contains(&expires), "{open}");
    ensure!(open["role"] == "dnat" && open["frontend"] == "192.168.50.12:30190", "{open}");
    ensure!(open["snat"].as_str().is_some_and(|snat| snat.starts_with("192.168.50.12:")), "{open}");
    let none = text(node, "conn list --service demo/one:line --state syn_sent --no-headers")?;
    ensure!(none.trim().is_empty(), "{none}");
    Ok(())
}

fn devices_are_listed(node: &Node) -> Result<()> {
    let devices = list(node, "device list")?;
    let eth0 = find(&devices, "interface", "eth0")?;
    ensure!(eth0["kind"] == "node" && eth0["tc"] == json!({"ingress": "tcx", "egress": "tcx"}), "{eth0}");
    ensure!(eth0["addresses"].as_array().is_some_and(|all| all.contains(&json!("192.168.50.12"))), "{eth0}");
    ensure!(eth0["masquerade"].as_array().is_some_and(|all| all.contains(&json!("fd00:50::12"))), "{eth0}");
    let pods = list(node, "device list --kind pod")?;
    find(&pods, "interface", "pod2-1")?;
    ensure!(pods.iter().all(|device| device["kind"] == "pod"), "{pods:?}");
    Ok(())
}

#[test]
fn lists_show_what_was_done_with_and_without_an_agent() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    let _open = Open::new(&cluster, Client, "192.168.50.12:30190")?;
    ensure!(!is_served(&cluster, Pod(1, 1), "10.96.0.20:999")?, "there is no such port");
    let client = cluster.client.v4.to_string();
    for running in [true, false] {
        if !running {
            cluster.nodes[1].agent.kill(Signal::SIGKILL)?;
        }
        let node = &cluster.nodes[1];
        backends_are_listed(node)?;
        connections_are_listed(node, &client)?;
        devices_are_listed(node)?;
        let drops = list(node, "drop list")?;
        let unknown = find(&drops, "reason", "unknown-port")?;
        ensure!(unknown["count"].as_u64() >= Some(1), "{drops:?}");
        ensure!(unknown["meaning"].as_str().is_some_and(|text| text.contains("declares no such port")));
    }
    Ok(())
}

#[test]
fn one_list_has_one_form_for_each_reader() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let node = &cluster.nodes[0];
    let json = list(node, "service list --service demo/web")?;
    ensure!(json.len() > 4, "{json:?}");
    let yaml: Vec<Value> = serde_norway::from_str(&text(node, "service list --service demo/web -o yaml")?)?;
    assert_eq!(json, yaml);
    let table = text(node, "service list --service demo/web --kind nodeport --sort frontend")?;
    let mut lines = table.lines();
    let header: Vec<_> = lines.next().context("a header")?.split_whitespace().collect();
    assert_eq!(header, ["SERVICE", "KIND", "FRONTEND", "PROTO", "POLICY", "BACKENDS", "CONNECTIONS"]);
    let wide = text(node, "service list --service demo/web --kind nodeport -o wide")?;
    ensure!(wide.contains("192.168.50.11:30080") && wide.contains("snat"), "{wide}");
    Ok(())
}

#[test]
fn clients_with_affinity_are_listed() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    let mut objects = manifests::two_nodes()?;
    let web = manifests::find(&mut objects, "Service", "web")?;
    web["spec"]["sessionAffinity"] = "ClientIP".into();
    web["spec"]["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 600}});
    cluster.nodes[0].agent.write(&objects)?;
    cluster.nodes[0].agent.wait_in_sync()?;
    let server = soon(|| answer(&cluster, Pod(0, 1), LINE, "10.96.0.10:90"))?.server;
    cluster.nodes[0].agent.stop()?;
    let node = &cluster.nodes[0];
    let rows = list(node, "affinity list --service demo/web --family ipv4 --valid")?;
    let row = find(&rows, "service", "demo/web:line")?;
    let backend = if server.starts_with("pod1") { "10.244.1.10:9090" } else { "10.244.2.10:9090" };
    assert_eq!((&row["client"], &row["backend"]), (&json!("10.244.1.11"), &json!(backend)), "{row}");
    let left = row["leftSeconds"].as_u64().context("left")?;
    ensure!(left <= 600 && left + row["ageSeconds"].as_u64().context("age")? == 600, "{row}");
    Ok(())
}

//! The maps against what the objects ask for: `shunt verify` and `shunt plan`.

use crate::world::two_nodes;
use anyhow::{Context, Result, ensure};
use proxy_common::maps::{backends::Backend, frontends::FrontendKey};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore},
    kernel::{KernelMaps, Pins},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
};
use tests::{
    agent::{Agent, SocketLb},
    manifests,
    process::{Spawn, binary},
    topology::cluster::{Cluster, Node},
};

/// The exit status and what was printed.
fn run(node: &Node, line: &str) -> Result<(Option<i32>, Value)> {
    let mut command = Command::new(binary("shunt")?);
    command.args(line.split(' ')).args(["-o", "json", "--hostname-override", &node.host.name]);
    command.arg("--config").arg(node.agent.config()).arg("--manifests").arg(node.agent.manifests());
    command.arg("--bpffs").arg(node.agent.pins());
    let output = command.netns(&node.host.netns)?.stderr(Stdio::inherit()).output()?;
    let printed =
        if output.stdout.is_empty() { Value::Null } else { serde_json::from_slice(&output.stdout)? };
    Ok((output.status.code(), printed))
}

fn is_same(node: &Node) -> Result<()> {
    let (status, verdict) = run(node, "verify")?;
    ensure!(status == Some(0) && verdict["same"] == true, "{status:?} {verdict:#}");
    ensure!(verdict["services"].as_u64() > Some(2), "{verdict:#}");
    Ok(())
}

/// The one difference with this row.
fn difference(node: &Node, row: &str) -> Result<Value> {
    let (status, verdict) = run(node, "verify --wait 0")?;
    ensure!(status == Some(1) && verdict["same"] == false, "{status:?} {verdict:#}");
    let all = verdict["differences"].as_array().context("differences")?;
    let found =
        all.iter().find(|difference| difference["row"].as_str().is_some_and(|text| text.starts_with(row)));
    found.cloned().with_context(|| format!("no {row} in {verdict:#}"))
}

#[test]
fn maps_are_verified_and_tampering_is_named() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    is_same(&cluster.nodes[0])?;
    cluster.nodes[0].agent.stop()?;
    let node = &cluster.nodes[0];
    is_same(node)?;

    let pins = Pins::new(node.agent.pins());
    let mut maps = KernelMaps::open(&pins)?;
    let frontends = maps.v4().frontends()?;
    let key = |key: &FrontendKey<_>| key.addr == [10, 96, 0, 20].into() && key.port == 90;
    let (key, row) = *frontends.iter().find(|(k, _)| key(k)).context("the ClusterIP of demo/one:line")?;
    maps.v4().delete_frontends(&[key])?;
    let missing = difference(node, "10.96.0.20:90/TCP")?;
    assert_eq!((&missing["service"], &missing["kind"]), (&json!("demo/one:line"), &json!("missing")));
    maps.v4().put_frontends(&[(key, row)])?;
    is_same(node)?;

    let mut slots = [0];
    maps.v4().slots(row.cluster.offset, &mut slots)?;
    let backend = maps.v4().backend(slots[0])?;
    let elsewhere = Backend { addr: [10, 9, 9, 9].into(), ..backend };
    maps.v4().put_backends(&[(slots[0], elsewhere)])?;
    let different = difference(node, "10.96.0.20:90/TCP")?;
    assert_eq!(different["kind"], "different");
    let details = different["details"].to_string();
    ensure!(details.contains("10.244.1.10:9090") && details.contains("10.9.9.9:9090"), "{different}");
    assert_eq!(difference(node, "10.9.9.9:9090")?["kind"], "extra");

    let node = &mut cluster.nodes[0];
    node.agent.start(&node.host.netns)?;
    node.agent.wait_in_sync()?;
    is_same(node)
}

#[test]
fn what_cannot_be_told_has_a_status_of_its_own() -> Result<()> {
    let cluster = Cluster::build(1, &Agent::small(SocketLb::Off))?;
    let (status, printed) = run(&cluster.nodes[0], "verify")?;
    assert_eq!((status, printed), (Some(2), Value::Null), "there are no maps");
    Ok(())
}

/// What a plan and a list have in common of each frontend.
fn essence(rows: &[Value]) -> BTreeSet<String> {
    let essence = |row: &Value| {
        let fields = ["service", "kind", "address", "port", "protocol", "family", "policy", "rules"];
        let fields = fields.map(|field| row[field].to_string());
        let backends = row["backends"].as_array().into_iter().flatten();
        let backends = backends.map(|backend| format!("{} {}", backend["address"], backend["local"]));
        format!("{fields:?} {:?}", backends.collect::<Vec<_>>())
    };
    rows.iter().map(essence).collect()
}

fn rows(value: Value) -> Result<Vec<Value>> {
    serde_json::from_value(value).context("rows")
}

#[test]
fn a_plan_is_what_the_agent_writes_then() -> Result<()> {
    let mut cluster = Cluster::build(1, &Agent::small(SocketLb::Off))?;
    let mut objects = manifests::two_nodes()?;
    let node = &mut cluster.nodes[0];
    node.agent.write(&objects)?;
    let (status, planned) = run(node, "plan")?;
    assert_eq!(status, Some(0));
    let planned: Vec<_> = rows(planned)?.into_iter().filter(|row| row["kind"].is_string()).collect();
    ensure!(planned.iter().all(|row| row["change"] == "new"), "{planned:#?}");
    ensure!(!node.agent.pins().exists(), "a plan writes nothing");
    node.agent.start(&node.host.netns)?;
    node.agent.wait_in_sync()?;
    let listed = node.agent.shunt(&node.host.netns, &["service", "list", "-o", "json"])?;
    assert_eq!(essence(&planned), essence(&serde_json::from_str::<Vec<Value>>(&listed)?));

    node.agent.stop()?;
    manifests::find(&mut objects, "EndpointSlice", "one-4")?["endpoints"][0]["addresses"][0] =
        "10.244.1.99".into();
    objects.retain(|object| object["metadata"]["name"] != "web");
    node.agent.write(&objects)?;
    let (_, changes) = run(node, "plan --changes --family ipv4")?;
    let changes = rows(changes)?;
    let change = |service: &str, port: u16, kind: &str| {
        let fits = |row: &&Value| row["service"] == service && row["port"] == port && row["kind"] == kind;
        changes.iter().find(fits).with_context(|| format!("no {service} {port} in {changes:#?}"))
    };
    let moved = change("demo/one:line", 90, "ClusterIP")?;
    let details = moved["details"].to_string();
    ensure!(
        moved["change"] == "changed" && details.contains("10.244.1.99:9090 on this node is missing"),
        "{moved}"
    );
    assert_eq!(change("demo/web:http", 30080, "NodePort")?["change"], "removed");
    node.agent.start(&node.host.netns)?;
    node.agent.wait_in_sync()?;
    let (_, nothing) = run(node, "plan --changes")?;
    ensure!(rows(nothing.clone())?.is_empty(), "{nothing:#}");
    is_same(node)
}

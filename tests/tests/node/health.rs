//! `/healthz` and `/livez` as load balancers and the kubelet see them.

use crate::{
    http::{HEALTH, METRICS, get},
    metrics::gauge,
    world::{LINE, answer, soon, two_nodes},
};
use anyhow::{Context, Result, ensure};
use nix::{
    sys::{
        ptrace,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tests::{
    agent::{Agent, SocketLb},
    freeze::freeze,
    late, manifests,
    topology::cluster::{Cluster, Node, Origin::Pod},
};

fn ask(node: &Node, path: &str) -> Result<(u16, Value)> {
    let answer = get(node, HEALTH, path)?;
    Ok((answer.status, serde_json::from_slice(&answer.body)?))
}

/// Waits for the codes of `/healthz` and `/livez`; returns the body of the first.
pub(crate) fn wait_for_health(node: &Node, healthz: u16, livez: u16) -> Result<Value> {
    soon(|| {
        let ((code, body), (live, live_body)) = (ask(node, "/healthz")?, ask(node, "/livez")?);
        let is_shown = (code, live) == (healthz, livez);
        ensure!(is_shown, late!("/healthz {code} {body}, /livez {live} {live_body}"));
        Ok(body)
    })
}

/// Changes the Node object of the first node, or removes it.
fn set_node(cluster: &mut Cluster, change: impl Fn(&mut Value) -> bool) -> Result<()> {
    let mut objects = manifests::two_nodes()?;
    objects.retain_mut(|object| object["metadata"]["name"] != "node1" || change(object));
    cluster.nodes[0].agent.write(&objects)
}

#[test]
fn a_node_that_goes_takes_no_new_connections_and_needs_no_restart() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    let body = wait_for_health(&cluster.nodes[0], 200, 200)?;
    ensure!(body["nodeEligible"] == true && body["healthy"] == true, "{body}");
    ensure!(body["status"]["IPv4"]["healthy"] == true && body["status"]["IPv6"]["healthy"] == true, "{body}");
    ensure!(body["lastUpdated"] == body["currentTime"], "{body}");
    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    set_node(&mut cluster, |node| {
        node["spec"]["taints"] = taint.clone();
        true
    })?;
    let body = wait_for_health(&cluster.nodes[0], 503, 200)?;
    ensure!(body["nodeEligible"] == false && body["healthy"] == true, "{body}");
    set_node(&mut cluster, |_| true)?;
    wait_for_health(&cluster.nodes[0], 200, 200)?;
    set_node(&mut cluster, |node| {
        node["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        true
    })?;
    wait_for_health(&cluster.nodes[0], 503, 200)?;
    set_node(&mut cluster, |_| true)?;
    wait_for_health(&cluster.nodes[0], 200, 200)?;
    set_node(&mut cluster, |_| false)?;
    wait_for_health(&cluster.nodes[0], 503, 200)?;
    answers_are_counted(&cluster.nodes[0])
}

#[test]
fn a_machine_without_a_cluster_is_well_without_a_node_object() -> Result<()> {
    let mut cluster = Cluster::build(1, &Agent::small(SocketLb::Off))?;
    let mut objects = manifests::two_nodes()?;
    objects.retain(|object| object["kind"] != "Node");
    cluster.start(&objects)?;
    let body = wait_for_health(&cluster.nodes[0], 200, 200)?;
    ensure!(body["nodeEligible"] == true, "{body}");
    let lacks = "there is no Node object of this name: NodePorts have no address, and the node has no zone";
    cluster.nodes[0].agent.wait_for("what it lacks", |line| line.message() == lacks)
}

fn answers_are_counted(node: &Node) -> Result<()> {
    let metrics = |path| -> Result<String> { Ok(get(node, METRICS, path)?.text()?.to_owned()) };
    let (text, slis) = (metrics("/metrics")?, metrics("/metrics/slis")?);
    for line in [
        r#"kubeproxy_proxy_healthz_total{code="200"} "#,
        r#"kubeproxy_proxy_healthz_total{code="503"} "#,
        r#"kubeproxy_proxy_livez_total{code="200"} "#,
    ] {
        ensure!(text.contains(line), "no {line} in {text}");
    }
    ensure!(text.contains("kubeproxy_proxy_livez_total{code=\"503\"} 0\n"), "{text}");
    for line in [
        r#"kubernetes_healthcheck{name="node",type="healthz"} 0"#,
        r#"kubernetes_healthcheck{name="sync-ipv4",type="livez"} 1"#,
        r#"kubernetes_healthchecks_total{name="node",type="healthz",status="error"} "#,
    ] {
        ensure!(slis.contains(line), "no {line} in {slis}");
    }
    Ok(())
}

/// Sync periods after which a change is late within two seconds, and room for few frontends.
fn impatient() -> Result<Cluster> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["maps"]["frontends"] = 128.into();
    shunt["maps"]["services"] = 4096.into();
    let cluster = Cluster::build(1, &shunt)?;
    let periods = json!({"nftables": {"syncPeriod": "1s", "minSyncPeriod": "100ms"}, "mode": "nftables"});
    cluster.nodes[0].agent.configure(&periods, &shunt)?;
    Ok(cluster)
}

/// A Service of so many ports.
fn with_ports(name: &str, address: &str, count: u16) -> Value {
    let ports: Vec<_> = (1..=count).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "demo", "name": name},
        "spec": {"clusterIP": address, "ports": ports},
    })
}

#[test]
fn rows_that_cannot_be_written_for_two_sync_periods_make_the_node_unhealthy() -> Result<()> {
    let mut cluster = impatient()?;
    let mut objects = manifests::two_nodes()?;
    cluster.start(&objects)?;
    let node = &mut cluster.nodes[0];
    wait_for_health(node, 200, 200)?;
    freeze(&node.agent.map("frontends_v4"))?;
    objects.push(with_ports("late", "10.96.0.99", 1));
    node.agent.write(&objects)?;
    let body = wait_for_health(node, 503, 503)?;
    ensure!(
        body["status"]["IPv4"]["healthy"] == false && body["status"]["IPv6"]["healthy"] == true,
        "{body}"
    );
    ensure!(body["nodeEligible"] == true && body["lastUpdated"] != body["currentTime"], "{body}");
    let text = get(node, METRICS, "/metrics")?;
    let pending = "kubeproxy_sync_proxy_rules_service_changes_pending 1\n";
    ensure!(text.text()?.contains(pending), "{}", text.text()?);
    objects.pop();
    // Its rows may be there in part, and cannot be taken back either.
    node.agent.write(&objects)?;
    node.agent.stop()?;
    let mut other_size = Agent::small(SocketLb::Off);
    other_size["maps"]["frontends"] = 256.into();
    node.agent.configure(&json!({}), &other_size)?;
    node.agent.start(&node.host.netns)?;
    wait_for_health(node, 200, 200).map(drop)
}

#[test]
fn a_service_without_room_concerns_nobody_else() -> Result<()> {
    const TO: &str = "10.96.0.20:90";
    let mut cluster = impatient()?;
    let mut objects = manifests::two_nodes()?;
    // It may have half of a table, and this is more than half of the largest that there will be.
    objects.push(with_ports("too-large", "10.96.0.99", 1_100));
    cluster.start(&objects)?;
    answer(&cluster, Pod(0, 1), LINE, TO)?;
    let reason = "map frontends: the Service needs 1101 rows, and may have 1024 of 2048";
    let listed = cluster.nodes[0].agent.shunt(&cluster.nodes[0].host.netns, &["service", "list"])?;
    let row = listed.lines().find(|line| line.contains("demo/too-large")).context("a row of the Service")?;
    ensure!(row.contains("refused") && row.contains(reason), "{listed}");
    // Late is what waits for two seconds.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        for path in ["/healthz", "/livez"] {
            let (code, body) = ask(&cluster.nodes[0], path)?;
            ensure!(code == 200, "{path}: {body}");
        }
    }
    let refused =
        |cluster: &Cluster| gauge(&cluster.nodes[0], "shunt_services_refused", &[("map", "frontends")]);
    ensure!(refused(&cluster)? == 1.0, "it is counted");
    let told = |cluster: &Cluster| {
        let lines = cluster.nodes[0].agent.lines();
        lines
            .iter()
            .filter(|line| line.message().starts_with("no room for what is wanted of the Service"))
            .count()
    };
    ensure!(told(&cluster) == 1, "it is told {} times", told(&cluster));
    // Others come and go, and so does what there is too much of.
    objects.push(with_ports("later", "10.96.0.98", 1));
    cluster.nodes[0].agent.write(&objects)?;
    cluster.nodes[0].agent.wait_in_sync()?;
    let listed = cluster.nodes[0].agent.shunt(&cluster.nodes[0].host.netns, &["service", "list"])?;
    ensure!(listed.contains("10.96.0.98:1"), "{listed}");
    objects.retain(|object| object["metadata"]["name"] != "too-large");
    objects.push(with_ports("too-large", "10.96.0.99", 1));
    cluster.nodes[0].agent.write(&objects)?;
    cluster.nodes[0].agent.wait_in_sync()?;
    soon(|| {
        ensure!(refused(&cluster)? == 0.0, late!("it still counts as refused"));
        Ok(())
    })?;
    let listed = cluster.nodes[0].agent.shunt(&cluster.nodes[0].host.netns, &["service", "list"])?;
    ensure!(listed.contains("10.96.0.99:1") && !listed.contains("refused"), "{listed}");
    ensure!(told(&cluster) == 1, "it is told {} times", told(&cluster));
    Ok(())
}

#[test]
fn a_service_finds_the_room_that_another_gives_back() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::Off);
    // They grow to sixteen times as much.
    shunt["maps"]["frontends"] = 8.into();
    let mut cluster = Cluster::build(1, &shunt)?;
    let mut objects = manifests::two_nodes()?;
    objects.retain(|object| object["kind"] == "Node");
    let large = ["a", "b"].map(|name| with_ports(name, &format!("10.96.1.{}", name.as_bytes()[0]), 60));
    objects.extend(large.into_iter().chain([with_ports("c", "10.96.1.1", 10)]));
    cluster.start(&objects)?;
    let node = &mut cluster.nodes[0];
    let row = |node: &Node| -> Result<String> {
        let listed = node.agent.shunt(&node.host.netns, &["service", "list"])?;
        let row = listed.lines().find(|line| line.contains("demo/c")).context("a row of the Service")?;
        Ok(row.to_owned())
    };
    let refused = row(node)?;
    ensure!(refused.contains("refused") && refused.contains("map frontends is full (128 rows)"), "{refused}");
    objects.retain(|object| object["metadata"]["name"] != "a");
    node.agent.write(&objects)?;
    soon(|| {
        let served = row(node)?;
        ensure!(served.contains("10.96.1.1:"), late!("{served}"));
        Ok(())
    })
}

/// A thread of a process that stands still until this is dropped, while the others go on.
struct Halted(Pid);

impl Halted {
    fn main_thread(process: u32) -> Result<Self> {
        let thread = Pid::from_raw(process.cast_signed());
        ptrace::attach(thread)?;
        waitpid(thread, Some(WaitPidFlag::__WALL))?;
        Ok(Self(thread))
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        if let Err(error) = ptrace::detach(self.0, None) {
            eprintln!("cannot let thread {} go on: {error}", self.0);
        }
    }
}

#[test]
fn a_main_loop_that_hangs_is_noticed_by_the_agent_itself() -> Result<()> {
    let mut cluster = impatient()?;
    cluster.start(&manifests::two_nodes()?)?;
    let node = &cluster.nodes[0];
    wait_for_health(node, 200, 200)?;
    let halted = Halted::main_thread(node.agent.process_id()?)?;
    // With short sync periods that is after a quarter of a minute.
    let body = wait_for_health(node, 503, 503)?;
    ensure!(body["reason"] == "the agent's main loop hangs", "{body}");
    drop(halted);
    wait_for_health(node, 200, 200).map(drop)
}

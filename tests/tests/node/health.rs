//! `/healthz` and `/livez` as load balancers and the kubelet see them.

use crate::{
    http::{HEALTH, METRICS, get},
    world::{soon, two_nodes},
};
use anyhow::{Result, ensure};
use nix::{
    sys::{
        ptrace,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use serde_json::{Value, json};
use tests::{
    agent::{Agent, SocketLb},
    late, manifests,
    topology::cluster::{Cluster, Node},
};

fn ask(node: &Node, path: &str) -> Result<(u16, Value)> {
    let answer = get(node, HEALTH, path)?;
    Ok((answer.status, serde_json::from_slice(&answer.body)?))
}

/// Waits for the codes of `/healthz` and `/livez`; returns the body of the first.
fn wait_for(node: &Node, healthz: u16, livez: u16) -> Result<Value> {
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
    let body = wait_for(&cluster.nodes[0], 200, 200)?;
    ensure!(body["nodeEligible"] == true && body["healthy"] == true, "{body}");
    ensure!(body["status"]["IPv4"]["healthy"] == true && body["status"]["IPv6"]["healthy"] == true, "{body}");
    ensure!(body["lastUpdated"] == body["currentTime"], "{body}");
    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    set_node(&mut cluster, |node| {
        node["spec"]["taints"] = taint.clone();
        true
    })?;
    let body = wait_for(&cluster.nodes[0], 503, 200)?;
    ensure!(body["nodeEligible"] == false && body["healthy"] == true, "{body}");
    set_node(&mut cluster, |_| true)?;
    wait_for(&cluster.nodes[0], 200, 200)?;
    set_node(&mut cluster, |node| {
        node["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        true
    })?;
    wait_for(&cluster.nodes[0], 503, 200)?;
    set_node(&mut cluster, |_| true)?;
    wait_for(&cluster.nodes[0], 200, 200)?;
    set_node(&mut cluster, |_| false)?;
    wait_for(&cluster.nodes[0], 503, 200)?;
    answers_are_counted(&cluster.nodes[0])
}

#[test]
fn a_machine_without_a_cluster_is_well_without_a_node_object() -> Result<()> {
    let mut cluster = Cluster::build(1, &Agent::small(SocketLb::Off))?;
    let mut objects = manifests::two_nodes()?;
    objects.retain(|object| object["kind"] != "Node");
    cluster.start(&objects)?;
    let body = wait_for(&cluster.nodes[0], 200, 200)?;
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
    let cluster = Cluster::build(1, &shunt)?;
    let periods = json!({"nftables": {"syncPeriod": "1s", "minSyncPeriod": "100ms"}, "mode": "nftables"});
    cluster.nodes[0].agent.configure(&periods, &shunt)?;
    Ok(cluster)
}

#[test]
fn rows_that_find_no_room_for_two_sync_periods_make_the_node_unhealthy() -> Result<()> {
    let mut cluster = impatient()?;
    let objects = manifests::two_nodes()?;
    cluster.start(&objects)?;
    wait_for(&cluster.nodes[0], 200, 200)?;
    // More than there is room for when the maps have grown as far as they may.
    let ports: Vec<_> = (1..=2100).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let too_large = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "demo", "name": "too-large"},
        "spec": {"clusterIP": "10.96.0.99", "ports": ports},
    });
    let mut more = objects.clone();
    more.push(too_large);
    cluster.nodes[0].agent.write(&more)?;
    let body = wait_for(&cluster.nodes[0], 503, 503)?;
    ensure!(
        body["status"]["IPv4"]["healthy"] == false && body["status"]["IPv6"]["healthy"] == true,
        "{body}"
    );
    ensure!(body["nodeEligible"] == true && body["lastUpdated"] != body["currentTime"], "{body}");
    let text = get(&cluster.nodes[0], METRICS, "/metrics")?;
    let pending = "kubeproxy_sync_proxy_rules_service_changes_pending 1\n";
    ensure!(text.text()?.contains(pending), "{}", text.text()?);
    cluster.nodes[0].agent.write(&objects)?;
    wait_for(&cluster.nodes[0], 200, 200).map(drop)
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
    wait_for(node, 200, 200)?;
    let halted = Halted::main_thread(node.agent.process_id()?)?;
    // With short sync periods that is after a quarter of a minute.
    let body = wait_for(node, 503, 503)?;
    ensure!(body["reason"] == "the agent's main loop hangs", "{body}");
    drop(halted);
    wait_for(node, 200, 200).map(drop)
}

//! What went by: `shunt stats`, the counters in lists, and `shunt top` without a terminal.

use crate::world::{LINE, is_served, soon, two_nodes};
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::thread;
use tests::{
    agent::SocketLb,
    late, manifests,
    topology::cluster::{
        Cluster, Node,
        Origin::{self, Pod},
    },
};

const VIP: &str = "10.96.0.10:90";

fn connect(cluster: &Cluster, from: Origin, count: u32) -> Result<()> {
    let outcomes = cluster.dial(from, LINE, VIP.parse()?, count)?;
    outcomes.into_iter().try_for_each(|outcome| outcome.answer(VIP).map(drop))
}

pub(crate) fn shunt(node: &Node, line: &str) -> Result<String> {
    node.agent.shunt(&node.host.netns, &line.split(' ').collect::<Vec<_>>())
}

/// The face of `demo/web:line` that has the address [`VIP`].
fn face(node: &Node, flags: &str) -> Result<Value> {
    let line = format!("stats -o json --service demo/web:line --kind clusterip --family ipv4{flags}");
    let report: Value = serde_json::from_str(&shunt(node, &line)?)?;
    report["services"].get(0).cloned().with_context(|| format!("nothing in {report:#}"))
}

fn sum(face: &Value, field: &str) -> u64 {
    let backends = face["backends"].as_array().into_iter().flatten();
    backends.filter_map(|backend| backend[field].as_u64()).sum()
}

fn is_counted(node: &Node, connections: u64) -> Result<()> {
    let face = face(node, "")?;
    ensure!(face["opened"] == connections && sum(&face, "opened") == connections, "{face:#}");
    // At least: a handshake, a question, its answer, and an end.
    ensure!(face["inPackets"].as_u64() > Some(3 * connections), "{face:#}");
    ensure!(sum(&face, "outBytes") > 40 * connections, "{face:#}");
    let shares: f64 =
        face["backends"].as_array().into_iter().flatten().filter_map(|b| b["share"].as_f64()).sum();
    ensure!((shares - 100.0).abs() < 0.2, "{face:#}");
    let backends: Vec<Value> =
        serde_json::from_str(&shunt(node, "backend list -o json --service demo/web:line --family ipv4")?)?;
    ensure!(backends.iter().filter_map(|backend| backend["opened"].as_u64()).sum::<u64>() == connections);
    Ok(())
}

#[test]
fn connections_and_packets_are_counted_by_backend() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    connect(&cluster, Pod(0, 1), 20)?;
    is_counted(&cluster.nodes[0], 20)?;
    cluster.nodes[0].agent.kill(Signal::SIGKILL)?;
    connect(&cluster, Pod(0, 1), 10)?;
    is_counted(&cluster.nodes[0], 30)?;
    let table = shunt(
        &cluster.nodes[0],
        "stats --service demo/web:line --kind clusterip --family ipv4 --sort conns",
    )?;
    let mut lines = table.lines();
    ensure!(lines.next().is_some_and(|header| header.ends_with("OUTBYTES")), "{table}");
    ensure!(lines.next().is_some_and(|face| face.starts_with("TCP    10.96.0.10:90")), "{table}");
    ensure!(
        lines.next().is_some_and(|backend| backend.trim_start().starts_with("-> 10.244.1.10:9090 *")),
        "{table}"
    );
    Ok(())
}

#[test]
fn connections_of_sockets_are_counted_without_packets() -> Result<()> {
    let cluster = two_nodes(SocketLb::All)?;
    connect(&cluster, Pod(0, 1), 5)?;
    let face = face(&cluster.nodes[0], "")?;
    assert_eq!((&face["opened"], &face["inPackets"]), (&5.into(), &0.into()), "{face:#}");
    Ok(())
}

/// What `line` prints while connections are opened.
fn while_busy(cluster: &Cluster, line: &str) -> Result<String> {
    thread::scope(|scope| {
        let printed = scope.spawn(|| shunt(&cluster.nodes[0], line));
        while !printed.is_finished() {
            connect(cluster, Pod(0, 1), 20)?;
        }
        printed.join().map_err(|_| anyhow::anyhow!("{line} panicked"))?
    })
}

#[test]
fn busy_services_have_rates() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    soon(|| {
        let text = while_busy(
            &cluster,
            "stats -o json --rate --interval 0.5 --service demo/web:line --kind clusterip",
        )?;
        let report: Value = serde_json::from_str(&text)?;
        let rates = &report["services"][0]["rates"];
        ensure!(rates["connectionsPerSecond"].as_f64() > Some(1.0), late!("{text}"));
        ensure!(rates["outBytesPerSecond"].as_f64() > Some(1.0), late!("{text}"));
        Ok(())
    })?;
    soon(|| {
        let text = while_busy(&cluster, "top --batch 2 --interval 0.3 --filter demo/web:line")?;
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        ensure!(lines.iter().filter(|line| line.contains(&"CPS▾")).count() == 2, "not two frames: {text}");
        let busy = |line: &Vec<&str>| {
            line.first() == Some(&"demo/web:line") && line.get(2).is_some_and(|cps| *cps != "0")
        };
        ensure!(lines.iter().any(busy), late!("{text}"));
        Ok(())
    })?;
    let backends = while_busy(&cluster, "top --once --interval 0.3 --service demo/web:line --sort backend")?;
    ensure!(backends.contains("10.244.1.10:9090") && backends.contains("10.244.2.10:9090"), "{backends}");
    let maps = shunt(&cluster.nodes[0], "top --once --interval 0.1 --tab maps")?;
    let conntrack = maps.lines().find(|line| line.starts_with("conntrack") && line.contains("IPv4"));
    let conntrack: Vec<_> = conntrack.with_context(|| maps.clone())?.split_whitespace().collect();
    ensure!(conntrack[2] != "0" && conntrack[3] == "65536", "{maps}");
    Ok(())
}

#[test]
fn refusals_are_told_by_service() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    let mut objects = manifests::two_nodes()?;
    manifests::find(&mut objects, "EndpointSlice", "one-4")?["endpoints"] = json!([]);
    cluster.nodes[0].agent.write(&objects)?;
    cluster.nodes[0].agent.wait_in_sync()?;
    ensure!(!is_served(&cluster, Pod(0, 1), "10.96.0.20:90")?, "it has no endpoint");
    let text = shunt(&cluster.nodes[0], "drop list -o json --service demo/one")?;
    let rows: Vec<Value> = serde_json::from_str(&text)?;
    let [row] = &rows[..] else { anyhow::bail!("not one row: {text}") };
    assert_eq!(
        (&row["reason"], &row["service"]),
        (&json!("no-endpoints"), &json!("demo/one:line")),
        "{text}"
    );
    ensure!(row["count"].as_u64() >= Some(1), "{text}");
    let top = shunt(&cluster.nodes[0], "top --once --interval 0.1 --tab drops --filter demo/one")?;
    ensure!(top.contains("no-endpoints") && top.contains("demo/one:line"), "{top}");
    Ok(())
}

//! `shunt trace`: what is told of connections while they are opened and refused, and that
//! counters say the same afterwards.

use crate::world::{LINE, answer, is_served, two_nodes};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::thread;
use tests::{
    agent::SocketLb,
    late,
    topology::cluster::{
        Cluster,
        Origin::{self, Client, Pod},
    },
};

/// What a trace with these arguments tells on a node while `act` is done again and again. It
/// ends with its event number `count`, or has none for too long.
fn trace(
    cluster: &Cluster,
    node: usize,
    count: usize,
    args: &[&str],
    act: impl Fn() -> Result<()> + Sync,
) -> Result<Vec<Value>> {
    let node = &cluster.nodes[node];
    let count = count.to_string();
    let mut line = vec!["trace", "-o", "json", "--count", &count, "--duration", "20"];
    line.extend(args);
    thread::scope(|scope| {
        let tracer = scope.spawn(|| node.agent.shunt(&node.host.netns, &line));
        while !tracer.is_finished() {
            act()?;
        }
        let text = tracer.join().map_err(|_| anyhow::anyhow!("the trace panicked"))??;
        text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
    })
}

fn first(events: Vec<Value>) -> Result<Value> {
    events.into_iter().next().with_context(|| late!("the trace told nothing"))
}

fn ask(cluster: &Cluster, from: Origin, to: &'static str) -> impl Fn() -> Result<()> + Sync {
    move || answer(cluster, from, LINE, to).map(drop)
}

#[test]
fn packets_that_open_connections_are_told() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let pod = trace(&cluster, 0, 1, &["--service", "demo/one"], ask(&cluster, Pod(0, 1), "10.96.0.20:90"))?;
    let pod = first(pod)?;
    let shown = |key: &str| pod[key].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        (&*shown("event"), &*shown("hook"), &*shown("verdict")),
        ("opened", "ingress", "dnat"),
        "{pod}"
    );
    assert_eq!((&*shown("service"), &*shown("frontend")), ("demo/one:line", "ClusterIP"), "{pod}");
    assert_eq!(
        (&*shown("destination"), &*shown("newDestination")),
        ("10.96.0.20:90", "10.244.1.10:9090"),
        "{pod}"
    );
    assert!(!pod["interface"].is_null() && pod["source"] == pod["newSource"], "{pod}");

    let node_port = ask(&cluster, Client, "192.168.50.12:30190");
    let node_address = cluster.client.v4.to_string();
    let mut told = trace(&cluster, 1, 2, &["--address", &node_address, "--protocol", "tcp"], node_port)?;
    // A trace may begin between the two hooks, where a packet waits for the next hop's address: then
    // the first event is the second one of a connection that was opened before.
    told.retain(|event| event["event"] == "opened");
    let outside = first(told)?;
    assert_eq!(
        (&outside["frontend"], &outside["interface"]),
        (&"NodePort".into(), &"eth0".into()),
        "{outside}"
    );
    assert_eq!(outside["verdict"], "dnat+snat", "{outside}");
    Ok(())
}

#[test]
fn refusals_are_told_with_their_reason() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let closed = || is_served(&cluster, Pod(0, 1), "10.96.0.20:999").map(drop);
    let refused = first(trace(&cluster, 0, 1, &["--refused", "--port", "999"], closed)?)?;
    assert_eq!(
        (&refused["event"], &refused["reason"]),
        (&"refused".into(), &"unknown-port".into()),
        "{refused}"
    );
    assert!(refused["meaning"].as_str().is_some_and(|text| text.contains("no such port")), "{refused}");
    // Nobody asked for the other events in between.
    let served = ask(&cluster, Pod(0, 1), "10.96.0.20:90");
    let both = || served().and_then(|()| closed());
    let event = first(trace(&cluster, 0, 1, &["--refused"], both)?)?;
    assert_eq!(event["event"], "refused", "{event}");
    Ok(())
}

#[test]
fn calls_of_programs_are_told() -> Result<()> {
    let cluster = two_nodes(SocketLb::All)?;
    let call = first(trace(&cluster, 0, 1, &[], ask(&cluster, Pod(0, 1), "10.96.0.20:90"))?)?;
    assert_eq!((&call["hook"], &call["verdict"]), (&"connect".into(), &"socket".into()), "{call}");
    assert_eq!(call["newDestination"], "10.244.1.10:9090", "{call}");
    assert!(call["process"].as_str().is_some_and(|name| name.ends_with(']')), "{call}");
    Ok(())
}

#[test]
fn one_trace_at_a_time() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let node = &cluster.nodes[0];
    let shunt = |args: &[&str]| node.agent.shunt(&node.host.netns, args);
    thread::scope(|scope| {
        let first = scope.spawn(|| shunt(&["trace", "--refused", "--count", "1", "--duration", "60"]));
        let mut refusal = None;
        while !first.is_finished() {
            // Until the first one listens, this one does, and ends at once.
            if let Err(error) = shunt(&["trace", "--refused", "--duration", "0"]) {
                refusal = Some(format!("{error:#}"));
                break;
            }
        }
        let refusal = refusal.context("two traces at once")?;
        ensure!(refusal.contains("somebody else listens"), "{refusal}");
        while !first.is_finished() {
            is_served(&cluster, Pod(0, 1), "10.96.0.20:999")?;
        }
        first.join().map_err(|_| anyhow::anyhow!("the trace panicked"))?.map(drop)
    })?;
    shunt(&["trace", "--refused", "--duration", "0"]).map(drop)
}

//! `shunt explain` says what traffic then does, and leaves no trace in the maps.

use crate::world::{LINE, configured};
use anyhow::{Context, Result, ensure};
use proxy_common::addr::{Ip4, Ip6};
use proxy_userspace::kernel::{KernelAddr, PinnedMaps, Pins};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fmt::Debug,
    net::{IpAddr, SocketAddr},
};
use tests::{
    agent::{Agent, SocketLb},
    manifests,
    probe::{Answer, Dial, Outcome, PATIENCE_MS, Proto},
    silence,
    topology::cluster::{
        Cluster,
        Origin::{self, Client, Node, Pod},
    },
};

/// No answer for so long is no answer, where none is expected.
const SILENCE_MS: u64 = 1500;

/// Everything in the maps that a packet could change, a line each.
fn state(cluster: &Cluster, node: usize) -> Result<BTreeSet<String>> {
    let maps = PinnedMaps::open(Pins::new(cluster.nodes[node].agent.pins()))?;
    let mut lines = BTreeSet::from([format!("{:?}", maps.drops()?), format!("{:?}", maps.settings()?)]);
    of_family::<Ip4>(&maps, &mut lines)?;
    of_family::<Ip6>(&maps, &mut lines)?;
    Ok(lines)
}

fn of_family<A: KernelAddr + Debug>(maps: &PinnedMaps, lines: &mut BTreeSet<String>) -> Result<()> {
    lines.extend(maps.conntrack::<A>()?.iter().map(|row| format!("{row:?}")));
    lines.extend(maps.affinity::<A>()?.iter().map(|row| format!("{row:?}")));
    lines.extend(maps.netns_addresses::<A>()?.iter().map(|row| format!("{row:?}")));
    lines.extend(maps.opened::<A>()?.iter().map(|row| format!("{row:?}")));
    lines.extend(maps.socket_pairs::<A>()?.iter().map(|row| format!("{row:?}")));
    lines.extend(maps.frontends::<A>()?.iter().map(|row| format!("{row:?}")));
    lines.extend(maps.backends::<A>()?.iter().map(|row| format!("{row:?}")));
    lines.extend(maps.node_addresses::<A>()?.iter().map(|row| format!("{row:?}")));
    Ok(())
}

/// The same, once the last packets of connections that were closed have come by.
fn state_at_rest(cluster: &Cluster, node: usize) -> Result<BTreeSet<String>> {
    let nodes = cluster.nodes.iter().flat_map(|node| node.pods.iter().chain([&node.host]));
    let hosts = nodes.chain([&cluster.client, &cluster.balancer]);
    silence::quiesce(&hosts.map(|host| &host.netns).collect::<Vec<_>>())?;
    state(cluster, node)
}

/// The answer of a node, with nothing changed by asking. No agent may run, for it sweeps.
fn explain(cluster: &Cluster, node: usize, arguments: &[&str]) -> Result<Value> {
    let before = state_at_rest(cluster, node)?;
    let asked = &cluster.nodes[node];
    let mut all = vec!["explain"];
    all.extend(arguments);
    all.extend(["-o", "json"]);
    let text = asked.agent.shunt(&asked.host.netns, &all)?;
    let after = state(cluster, node)?;
    let changes: Vec<_> = before.symmetric_difference(&after).collect();
    ensure!(changes.is_empty(), "{arguments:?} left a trace: {changes:#?}");
    serde_json::from_str(&text).with_context(|| text.clone())
}

/// Answers come from the maps, and traffic goes by them: no agent is needed for either.
fn without_agents(mut cluster: Cluster) -> Result<Cluster> {
    cluster.nodes.iter_mut().try_for_each(|node| node.agent.stop())?;
    Ok(cluster)
}

/// What really happens, in so many milliseconds.
fn outcome(cluster: &Cluster, from: Origin, to: &str, timeout_ms: u64) -> Result<Outcome> {
    let to: SocketAddr = to.parse()?;
    let proto = match to.port() {
        53 => Proto::Udp,
        80 | 30080 | 30280 => Proto::Http,
        _ => LINE,
    };
    let (host, worker) = cluster.host(from);
    Ok(worker.dial(&Dial { timeout_ms, ..Dial::new(&host.netns, proto, to) })?.remove(0))
}

fn address(cluster: &Cluster, from: Origin, to: &str) -> String {
    let host = cluster.host(from).0;
    if to.starts_with('[') { host.v6.to_string() } else { host.v4.to_string() }
}

/// Explains on `node`, then connects: a backend that was among the candidates answers, and the one
/// that was foretold sees the source that was foretold.
fn foretells(cluster: &Cluster, node: usize, from: Origin, to: &str) -> Result<(Value, Answer)> {
    let client = match from {
        Node(_) => "host".to_owned(),
        _ => address(cluster, from, to),
    };
    let told = explain(cluster, node, &[&client, to])?;
    ensure!(told["verdict"]["outcome"] == "delivered", "{from:?} → {to}: {told:#}");
    let outcome = outcome(cluster, from, to, PATIENCE_MS)?;
    let answer = outcome.answer(format_args!("{from:?} → {to}, of which is told {told:#}"))?;
    let candidates = told["candidates"].as_array().into_iter().flatten();
    let candidates: BTreeSet<SocketAddr> =
        candidates.filter_map(|candidate| candidate["address"].as_str()?.parse().ok()).collect();
    ensure!(candidates.contains(&answer.local), "{answer} is none of {candidates:?}");
    let source: IpAddr = told["source"]["address"].as_str().context("no source")?.parse()?;
    // Another backend may be behind another device, and so behind another masquerade.
    let same = told["backend"] == answer.local.to_string();
    ensure!(
        !same || source == answer.saw.ip(),
        "the backend saw {}, foretold was {source}: {told:#}",
        answer.saw
    );
    Ok((told, answer))
}

/// The same for what is refused.
fn foretells_refusal(
    cluster: &Cluster,
    from: Origin,
    to: &str,
    reason: &str,
    wanted: &Outcome,
) -> Result<()> {
    let told = explain(cluster, 1, &[&address(cluster, from, to), to])?;
    let word = if *wanted == Outcome::Refused { "rejected" } else { "dropped" };
    ensure!(told["verdict"]["outcome"] == word && told["verdict"]["reason"] == reason, "{to}: {told:#}");
    let before = refusals(cluster, reason)?;
    let limit = if *wanted == Outcome::TimedOut { SILENCE_MS } else { PATIENCE_MS };
    let found = outcome(cluster, from, to, limit)?;
    ensure!(found == *wanted, "{from:?} → {to}: {found}, foretold was {word}");
    ensure!(refusals(cluster, reason)? > before, "{from:?} → {to}: not counted as {reason}");
    Ok(())
}

/// How often the second node has refused something for this reason.
fn refusals(cluster: &Cluster, reason: &str) -> Result<u64> {
    let drops = PinnedMaps::open(Pins::new(cluster.nodes[1].agent.pins()))?.drops()?;
    Ok(drops.iter().filter(|(other, _)| other.name() == reason).map(|(_, count)| count).sum())
}

#[test]
fn what_is_explained_is_what_traffic_does() -> Result<()> {
    let cluster = without_agents(configured(&Agent::small(SocketLb::Off))?)?;
    let (mine, own) = (Pod(1, 1), Pod(0, 0));
    for to in ["10.96.0.20:90", "[fd00:96::20]:90", "10.96.0.20:53/UDP", "10.96.0.10:90"] {
        let socket = to.trim_end_matches("/UDP");
        if to == socket {
            let (told, _) = foretells(&cluster, 1, mine, to)?;
            assert_eq!(
                (&told["client"]["class"], &told["frontend"]["kind"]),
                (&json!("pod"), &json!("ClusterIP"))
            );
        } else {
            let told = explain(&cluster, 1, &["10.244.2.11", to])?;
            assert_eq!((&told["protocol"], &told["backend"]), (&json!("UDP"), &json!("10.244.1.10:5353")));
        }
    }
    // From outside: masqueraded for a backend elsewhere, and the client's own address by the policy Local.
    for to in ["192.168.50.12:30190", "[fd00:50::12]:30190", "192.168.50.12:30080"] {
        let (told, _) = foretells(&cluster, 1, Client, to)?;
        assert_eq!(told["client"]["class"], "external");
    }
    let (told, answer) = foretells(&cluster, 0, Client, "192.168.50.11:30280")?;
    assert_eq!(
        (told["frontend"]["kind"].as_str(), answer.saw.ip()),
        (Some("NodePort"), cluster.client.v4.into())
    );
    // A pod that reaches itself.
    for to in ["10.96.0.20:90", "[fd00:96::20]:90"] {
        let (told, _) = foretells(&cluster, 0, own, to)?;
        ensure!(told["source"]["why"].as_str().is_some_and(|why| why.contains("itself")), "{told:#}");
    }
    // A process of the host, whose packets are rewritten because no socket hook serves it.
    for to in ["10.96.0.20:90", "[fd00:96::20]:90"] {
        foretells(&cluster, 1, Node(1), to)?;
    }
    foretells_refusal(&cluster, Client, "192.168.50.12:30280", "no-local-endpoint", &Outcome::TimedOut)?;
    foretells_refusal(&cluster, mine, "10.96.0.10:81", "unknown-port", &Outcome::Refused)?;
    foretells_refusal(&cluster, mine, "10.96.0.40:80", "no-endpoints", &Outcome::Refused)?;
    foretells_refusal(&cluster, mine, "[fd00:96::40]:80", "no-endpoints", &Outcome::Refused)?;
    // Left to the load balancer, and what the host has for itself.
    for (to, why) in [("198.51.100.20:80", "ipMode: Proxy"), ("192.168.50.12:31999", "this node's own")] {
        let told = explain(&cluster, 1, &["outside", to])?;
        assert_eq!(told["verdict"]["outcome"], "untouched", "{told:#}");
        ensure!(told["noFrontend"].as_str().is_some_and(|told| told.contains(why)), "{told:#}");
    }
    Ok(())
}

#[test]
fn source_ranges_affinity_and_open_connections_are_explained() -> Result<()> {
    let mut cluster = Cluster::build(2, &Agent::small(SocketLb::Off))?;
    let mut objects = manifests::two_nodes()?;
    manifests::find(&mut objects, "Service", "vip")?["spec"]["loadBalancerSourceRanges"] =
        json!(["203.0.113.0/24"]);
    manifests::find(&mut objects, "Service", "web")?["spec"]["sessionAffinity"] = "ClientIP".into();
    cluster.start(&objects)?;
    let cluster = without_agents(cluster)?;
    cluster.client.netns.ip("route add 198.51.100.10 via 192.168.50.12")?;
    foretells_refusal(&cluster, Client, "198.51.100.10:80", "source-not-allowed", &Outcome::TimedOut)?;
    let admitted = explain(&cluster, 1, &["203.0.113.9", "198.51.100.10:80"])?;
    assert_eq!(
        (&admitted["frontend"]["sourceRangesAdmit"], &admitted["verdict"]["outcome"]),
        (&json!(true), &json!("delivered"))
    );

    let (from, to) = (Pod(1, 1), "10.96.0.10:90");
    assert_eq!(explain(&cluster, 1, &["10.244.2.11", to])?["affinity"], Value::Null);
    let (_, first) = foretells(&cluster, 1, from, to)?;
    for _ in 0..3 {
        let (told, answer) = foretells(&cluster, 1, from, to)?;
        assert_eq!(
            (&told["affinity"]["counts"], &told["backend"]),
            (&json!(true), &json!(first.local.to_string()))
        );
        assert_eq!(answer.server, first.server);
    }

    // The one thing that decides when it is there: the connection itself.
    let (host, worker) = cluster.host(Client);
    for sport in 45_000..45_004 {
        let dial = Dial {
            source_port: Some(sport),
            keep: Some(format!("{sport}")),
            ..Dial::new(&host.netns, LINE, "192.168.50.12:30090".parse()?)
        };
        let answer = worker.dial(&dial)?.remove(0).answer(format_args!("from port {sport}"))?;
        let told =
            explain(&cluster, 1, &["192.168.50.100", "192.168.50.12:30090", "--sport", &sport.to_string()])?;
        assert_eq!(told["connection"]["backend"], answer.local.to_string(), "{told:#}");
        assert_eq!(told["backend"], answer.local.to_string(), "{told:#}");
    }
    Ok(())
}

#[test]
fn socket_lb_is_explained_and_services_are_found_by_name() -> Result<()> {
    let cluster = without_agents(configured(&Agent::small(SocketLb::All))?)?;
    for (node, from) in [(1, Pod(1, 1)), (1, Node(1))] {
        for to in ["10.96.0.20:90", "[fd00:96::20]:90"] {
            let (told, _) = foretells(&cluster, node, from, to)?;
            assert_eq!(told["steps"][0]["hook"], "socket", "{told:#}");
        }
    }
    let node = &cluster.nodes[1];
    let shown = node.agent.shunt(&node.host.netns, &["explain", "host", "demo/one:line"])?;
    for line in [
        "client      node: ",
        "frontend    ClusterIP of demo/one:line, 10.96.0.20:90",
        "steps       socket: ",
        "verdict     delivered: 10.244.1.10:9090 answers",
    ] {
        ensure!(shown.contains(&format!("\n{line}")), "no {line:?} in:\n{shown}");
    }
    let told = explain(&cluster, 1, &["host", "demo/one:line"])?;
    assert_eq!(
        (&told["destination"], &told["frontend"]["service"]),
        (&json!("10.96.0.20:90"), &json!("demo/one:line"))
    );
    for (arguments, complaint) in [
        (["host", "demo/none"], "there is no service demo/none"),
        (["host", "demo/one"], "which of these ports is meant? 53/UDP, 80/TCP, 90/TCP"),
        (["somebody", "10.96.0.20:90"], "neither an address"),
    ] {
        let all = [&["explain"], &arguments[..]].concat();
        let error = node.agent.shunt(&node.host.netns, &all).expect_err("a question that cannot be answered");
        ensure!(format!("{error:#}").contains(complaint), "{error:#}");
    }
    Ok(())
}

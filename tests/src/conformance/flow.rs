//! Makes the connections of a flow, as many as its promise needs.

use super::{
    case::{Backends, Expect, Fate, Flow, Via},
    judge::{Facts, Observed, judge, uneven, wants_every_target},
    pause,
    scene::Scene,
};
use crate::{
    agent::SocketLb,
    late, netns,
    probe::{Bulk, Dial, Exchange, Outcome, PATIENCE_MS, Proto, Worker},
    silence,
};
use anyhow::{Context, Result};
use std::{
    collections::{HashMap, HashSet},
    fs::File,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// No answer for so long is no answer, where none is expected.
const SILENCE: u64 = 400;
/// Connections where one would do.
const FEW: u32 = 3;
/// Connections per target that a distribution is judged by, at least and at most: with the
/// most, a fair choice is rejected once in a million times.
const SHARE: (u32, u32) = (60, 300);

/// What earlier flows of the case leave to later ones.
#[derive(Debug, Default)]
pub(super) struct Memory {
    targets: HashMap<String, SocketAddr>,
    /// Flows whose connection is used again.
    kept: HashSet<String>,
}

impl Memory {
    /// Knows beforehand which connections to keep open.
    pub(super) fn new<'a>(flows: impl Iterator<Item = &'a Flow>) -> Self {
        Self { targets: HashMap::new(), kept: flows.filter_map(|flow| flow.established.clone()).collect() }
    }
}

/// Carries out a flow and judges it.
pub(super) fn check(scene: &Scene, flow: &Flow, memory: &mut Memory) -> Result<()> {
    if matches!(flow.via, Via::Pod | Via::LocalPod) && flow.iface.is_some() {
        // The address may have sat behind another interface in an earlier flow.
        scene.stage.route_to_pod(&scene.pod_key(flow), flow.from)?;
    }
    // A long-lived client may follow a change later.
    let limit = if flow.source_port.is_some() { late::SOON } else { Duration::ZERO };
    late::until(limit, || attempt(scene, flow, memory)).with_context(|| describe(flow))
}

fn describe(flow: &Flow) -> String {
    let via = match flow.via {
        Via::Pod => "pod",
        Via::LocalPod => "local-pod",
        Via::Node => "node",
        Via::External => "external",
        Via::RemotePod => "remote-pod",
    };
    format!("{} ({via}) → {} {}", flow.from, flow.to, flow.proto)
}

fn attempt(scene: &Scene, flow: &Flow, memory: &mut Memory) -> Result<()> {
    let observed = observe(scene, flow, memory)?;
    let node_addresses = scene.stage.node_addresses()?;
    let facts = Facts {
        node_addresses: &node_addresses,
        socket_translated: match scene.socket_lb {
            SocketLb::All => matches!(flow.via, Via::Pod | Via::LocalPod | Via::Node),
            SocketLb::Host => flow.via == Via::Node,
            SocketLb::Off => false,
        },
        server_at: &|address| scene.server_at(address),
        targets: &memory.targets,
    };
    judge(flow, &flow.expect, &observed, &facts)?;
    if let (Some(id), Some(Outcome::Answered(answer))) = (&flow.id, observed.outcomes.last()) {
        memory.targets.insert(id.clone(), answer.local);
    }
    Ok(())
}

fn observe(scene: &Scene, flow: &Flow, memory: &Memory) -> Result<Observed> {
    // The kernel looks through all of its sockets for those of one namespace: only where it matters.
    let openings = || if expects_silence(&flow.expect) { scene.openings() } else { Ok(0) };
    if expects_silence(&flow.expect) {
        scene.quiesce()?;
    }
    let before = openings()?;
    for worker in [&scene.inside, &scene.outside] {
        worker.arrivals()?;
    }
    let mut observed = connections(scene, flow, memory)?;
    for worker in [&scene.inside, &scene.outside] {
        observed.arrivals.extend(worker.arrivals()?);
    }
    observed.openings = openings()?.saturating_sub(before);
    Ok(observed)
}

fn connections(scene: &Scene, flow: &Flow, memory: &Memory) -> Result<Observed> {
    let mut observed = Observed::default();
    let (worker, netns) = client(scene, flow)?;
    if let Some(id) = &flow.established {
        let exchange = Exchange { keep: id.clone(), timeout_ms: PATIENCE_MS, bulk: Bulk::default() };
        observed.outcomes.push(worker.exchange(exchange)?);
        return Ok(observed);
    }
    let mut dial = Dial {
        netns,
        proto: flow.proto,
        from: Some(flow.from),
        source_port: flow.source_port,
        to: flow.to,
        count: count(flow),
        timeout_ms: patience(&flow.expect),
        gap_ms: 0,
        keep: flow.id.clone().filter(|id| memory.kept.contains(id)),
    };
    for from in flow.clients() {
        // What the kernel would choose for a process of the node depends on where the
        // connection really goes, so it is left to it.
        dial.from = Some(from).filter(|_| flow.via != Via::Node);
        let resent = || netns::inside(&File::open(&dial.netns)?, silence::resent_segments);
        let before = resent()?;
        observed.outcomes.extend(match flow.gap_seconds {
            Some(seconds) => pause::dial(scene, worker, &dial, Duration::from_secs_f64(seconds))?,
            None => worker.dial(&dial)?,
        });
        observed.resent += resent()? - before;
    }
    even_out(worker, &dial, flow, &mut observed)?;
    Ok(observed)
}

/// Chance makes few connections look uneven: adds more before judging.
fn even_out(worker: &Worker, dial: &Dial, flow: &Flow, observed: &mut Observed) -> Result<()> {
    let Expect::Backends(Backends { backends, distribution: Some(_), .. }) = &flow.expect else {
        return Ok(());
    };
    let most = backends.len() * SHARE.1 as usize;
    let answered = |observed: &Observed| observed.outcomes.iter().all(|o| matches!(o, Outcome::Answered(_)));
    while answered(observed) && observed.outcomes.len() < most && uneven(backends, observed).is_some() {
        observed.outcomes.extend(worker.dial(dial)?);
    }
    Ok(())
}

fn client<'a>(scene: &'a Scene, flow: &Flow) -> Result<(&'a Worker, PathBuf)> {
    Ok(match flow.via {
        Via::Pod | Via::LocalPod => (&scene.inside, scene.stage.pod(&scene.pod_key(flow))?.path()),
        Via::Node => (&scene.inside, scene.stage.node.path()),
        Via::External | Via::RemotePod => (&scene.outside, scene.stage.client.path()),
    })
}

/// Enough connections that a fair choice leaves out a target once in a hundred million
/// times: n targets need n·(ln n + 18).
fn count(flow: &Flow) -> u32 {
    if let Some(repeat) = flow.repeat {
        return repeat;
    }
    if flow.clients.is_some() || flow.source_port.is_some() || flow.proto == Proto::Icmp {
        return 1;
    }
    most(&flow.expect, |expect| match expect {
        Expect::Backends(expect) if expect.distribution.is_some() => expect.backends.len() as u32 * SHARE.0,
        Expect::Backends(expect) if wants_every_target(flow, expect) && expect.backends.len() > 1 => {
            let targets = expect.backends.len() as f64;
            (targets * (targets.ln() + 18.0)).ceil() as u32
        }
        _ => FEW,
    })
}

fn patience(expect: &Expect) -> u64 {
    most(expect, |expect| match expect {
        Expect::Verdict(decided) if decided.verdict == Fate::Drop => SILENCE,
        _ => PATIENCE_MS,
    })
}

fn expects_silence(expect: &Expect) -> bool {
    most(expect, |expect| matches!(expect, Expect::Verdict(decided) if decided.verdict == Fate::Drop))
}

/// The greatest value over all alternatives.
fn most<T: Ord + Default>(expect: &Expect, value: impl Fn(&Expect) -> T + Copy) -> T {
    match expect {
        Expect::OneOf(one_of) => one_of.one_of.iter().map(|one| most(one, value)).max().unwrap_or_default(),
        expect => value(expect),
    }
}

/// Where the health port of a node is asked unless a case says otherwise.
pub(super) fn primary(scene: &Scene) -> Result<IpAddr> {
    scene.stage.node_addresses()?.first().copied().context("the node has no address")
}

//! What the tests of this tier have in common.

use anyhow::{Result, bail};
use serde_json::Value;
use std::{
    thread,
    time::{Duration, Instant},
};
use tests::{
    agent::{Agent, SocketLb},
    manifests,
    probe::{Answer, Bulk, Dial, Exchange, Outcome, Proto},
    topology::cluster::{Cluster, Origin},
};

pub(crate) const LINE: Proto = Proto::Tcp;

/// Two nodes whose agents serve `tests/manifests/two-nodes.yaml`.
pub(crate) fn two_nodes(socket_lb: SocketLb) -> Result<Cluster> {
    configured(&Agent::small(socket_lb))
}

/// The same with filters of clsact, as on kernels without TCX.
pub(crate) fn two_nodes_with_clsact() -> Result<Cluster> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["attach"] = "clsact".into();
    configured(&shunt)
}

pub(crate) fn configured(shunt: &Value) -> Result<Cluster> {
    let mut cluster = Cluster::build(2, shunt)?;
    cluster.start(&manifests::two_nodes()?)?;
    Ok(cluster)
}

/// The answer to one connection; no answer is an error.
pub(crate) fn answer(cluster: &Cluster, from: Origin, proto: Proto, to: &str) -> Result<Answer> {
    match cluster.dial(from, proto, to.parse()?, 1)?.remove(0) {
        Outcome::Answered(answer) => {
            assert_eq!(answer.peer, to.parse()?, "{answer}");
            Ok(answer)
        }
        other => bail!("{from:?} → {to} {proto}: {other}"),
    }
}

/// Whether a single try gets an answer: a refusal tells that it does not, and so does a silence
/// much longer than an answer takes on a busy machine. A test that wants none also shows that there
/// is one when there should be, or that the refusal was counted.
pub(crate) fn is_served(cluster: &Cluster, from: Origin, to: &str) -> Result<bool> {
    let (host, worker) = cluster.host(from);
    let dial = Dial { timeout_ms: 3000, ..Dial::new(&host.netns, LINE, to.parse()?) };
    Ok(matches!(worker.dial(&dial)?.remove(0), Outcome::Answered(_)))
}

/// Tries until it works.
pub(crate) fn soon<T>(attempt: impl FnMut() -> Result<T>) -> Result<T> {
    soon_within(Duration::from_secs(60), attempt)
}

/// Tries for so long.
pub(crate) fn soon_within<T>(limit: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            result => return result,
        }
    }
}

/// A connection that stays open.
pub(crate) struct Open<'a> {
    cluster: &'a Cluster,
    from: Origin,
    name: String,
}

impl<'a> Open<'a> {
    pub(crate) fn new(cluster: &'a Cluster, from: Origin, to: &str) -> Result<Self> {
        Self::numbered(cluster, from, to, 0)
    }

    /// One of several between the same ends.
    pub(crate) fn numbered(cluster: &'a Cluster, from: Origin, to: &str, number: u32) -> Result<Self> {
        let (host, worker) = cluster.host(from);
        let name = name(from, to, number);
        let dial = Dial { keep: Some(name.clone()), ..Dial::new(&host.netns, LINE, to.parse()?) };
        match worker.dial(&dial)?.remove(0) {
            Outcome::Answered(_) => Ok(Self { cluster, from, name }),
            other => bail!("{name}: {other}"),
        }
    }

    /// One that was opened before.
    pub(crate) fn again(cluster: &'a Cluster, from: Origin, to: &str) -> Self {
        Self { cluster, from, name: name(from, to, 0) }
    }

    pub(crate) fn send(&self, bulk: Bulk) -> Result<Answer> {
        let (_, worker) = self.cluster.host(self.from);
        match worker.exchange(Exchange { keep: self.name.clone(), timeout_ms: 10_000, bulk })? {
            Outcome::Answered(answer) => Ok(answer),
            other => bail!("{}: {other}", self.name),
        }
    }
}

fn name(from: Origin, to: &str, number: u32) -> String {
    format!("{from:?} → {to} #{number}")
}

/// Lets the datagram port of the service `one` lead to another port of its backend.
pub(crate) fn lead_datagrams_to(cluster: &mut Cluster, port: u16) -> Result<()> {
    let mut objects = manifests::two_nodes()?;
    for name in ["one-4", "one-6"] {
        let slice = manifests::find(&mut objects, "EndpointSlice", name)?;
        let ports = slice["ports"].as_array_mut().into_iter().flatten();
        ports.filter(|entry| entry["name"] == "echo").for_each(|entry| entry["port"] = port.into());
    }
    for node in &mut cluster.nodes {
        node.agent.write(&objects)?;
        node.agent.wait_in_sync()?;
    }
    Ok(())
}

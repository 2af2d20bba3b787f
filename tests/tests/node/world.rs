//! What the tests of this tier have in common.

use anyhow::{Result, ensure};
use serde_json::Value;
pub(crate) use tests::late::soon;
use tests::{
    agent::{Agent, SocketLb},
    manifests,
    probe::{Answer, Bulk, Dial, Exchange, Outcome, PATIENCE_MS, Proto},
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
    let outcome = cluster.dial(from, proto, to.parse()?, 1)?.remove(0);
    let answer = outcome.answer(format_args!("{from:?} → {to} {proto}"))?;
    assert_eq!(answer.peer, to.parse()?, "{answer}");
    Ok(answer)
}

/// Whether a single try gets an answer: a refusal tells that it does not, and so does a silence
/// much longer than an answer takes on a busy machine. A test that wants none also shows that there
/// is one when there should be, or that the refusal was counted.
pub(crate) fn is_served(cluster: &Cluster, from: Origin, to: &str) -> Result<bool> {
    let (host, worker) = cluster.host(from);
    let dial = Dial { timeout_ms: 3000, ..Dial::new(&host.netns, LINE, to.parse()?) };
    Ok(matches!(worker.dial(&dial)?.remove(0), Outcome::Answered(_)))
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
        worker.dial(&dial)?.remove(0).answer(&name)?;
        Ok(Self { cluster, from, name })
    }

    /// One that was opened before.
    pub(crate) fn again(cluster: &'a Cluster, from: Origin, to: &str) -> Self {
        Self { cluster, from, name: name(from, to, 0) }
    }

    pub(crate) fn send(&self, bulk: Bulk) -> Result<Answer> {
        self.exchange(bulk)?.answer(&self.name)
    }

    /// The same after something that the connection has to outlive: if no answer comes then, it is
    /// broken, and not only late.
    pub(crate) fn outlives(&self, bulk: Bulk) -> Result<Answer> {
        let outcome = self.exchange(bulk)?;
        ensure!(outcome != Outcome::TimedOut, "{}: the connection is silent", self.name);
        outcome.answer(&self.name)
    }

    fn exchange(&self, bulk: Bulk) -> Result<Outcome> {
        let (_, worker) = self.cluster.host(self.from);
        worker.exchange(Exchange { keep: self.name.clone(), timeout_ms: PATIENCE_MS, bulk })
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

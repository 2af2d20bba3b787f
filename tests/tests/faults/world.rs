//! What the tests of this tier have in common: two nodes, and traffic through node 2.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{collections::BTreeSet, net::SocketAddr};
use tests::{
    agent::{Agent, SocketLb},
    late::soon,
    load::{Load, Path, Report},
    manifests,
    probe::{Dial, Outcome, Proto},
    topology::cluster::{
        Cluster,
        Origin::{self, Client, Node, Pod},
    },
};

/// The node whose agent has the faults. The backend of most paths is on the other one.
pub(crate) const VICTIM: usize = 1;

/// Two nodes whose agents serve `tests/manifests/two-nodes.yaml`.
pub(crate) fn two_nodes(socket_lb: SocketLb) -> Result<Cluster> {
    configured(&Agent::small(socket_lb))
}

/// The same with this `ShuntConfiguration`.
pub(crate) fn configured(shunt: &Value) -> Result<Cluster> {
    let mut cluster = Cluster::build(2, shunt)?;
    cluster.start(&manifests::two_nodes()?)?;
    Ok(cluster)
}

/// One path for everything the programs of node 2 do: a service with one backend on node 1, from
/// a pod, from the host and from outside (masqueraded); one with a backend on each node; and the
/// way back of what a node port of node 1 does.
pub(crate) fn paths() -> Result<Vec<Path>> {
    Ok(vec![
        Path::tcp(Pod(VICTIM, 1), "10.96.0.20:90")?,
        Path::udp(Pod(VICTIM, 1), "10.96.0.20:53")?,
        Path::tcp(Pod(VICTIM, 1), "[fd00:96::20]:90")?,
        Path::udp(Pod(VICTIM, 1), "[fd00:96::20]:53")?,
        Path::tcp(Pod(VICTIM, 1), "10.96.0.10:90")?,
        Path::tcp(Node(VICTIM), "10.96.0.20:90")?,
        Path::udp(Node(VICTIM), "10.96.0.10:53")?,
        Path::tcp(Client, "192.168.50.12:30190")?,
        Path::udp(Client, "192.168.50.12:30153")?,
        Path::tcp(Client, "[fd00:50::12]:30090")?,
        Path::udp(Client, "[fd00:50::12]:30153")?,
    ])
}

/// Ends the load; shows and judges what it counted.
pub(crate) fn lossless(load: Load, what: &str) -> Result<Report> {
    let report = load.finish()?;
    println!("{what}:\n{report}\n");
    report.ensure_lossless().with_context(|| what.to_owned())?;
    Ok(report)
}

/// The servers that answer a number of connections, one after the other.
pub(crate) fn servers(cluster: &Cluster, from: Origin, to: &str, count: u32) -> Result<BTreeSet<String>> {
    let (host, worker) = cluster.host(from);
    let to: SocketAddr = to.parse()?;
    let proto = if to.port() == 80 { Proto::Http } else { Proto::Tcp };
    let outcomes = worker.dial(&Dial { count, ..Dial::new(&host.netns, proto, to) })?;
    let server = |outcome: Outcome| Ok(outcome.answer(format_args!("{from:?} → {to}"))?.server);
    outcomes.into_iter().map(server).collect()
}

/// Waits until these servers and no others answer.
pub(crate) fn soon_answer(cluster: &Cluster, from: Origin, to: &str, wanted: &[&str]) -> Result<()> {
    soon(|| {
        let found = servers(cluster, from, to, 12)?;
        ensure!(found.iter().eq(wanted), "{from:?} → {to}: {found:?}, wanted {wanted:?}");
        Ok(())
    })
}

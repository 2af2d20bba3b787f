//! Agents end, by a supervisor or by a crash, and come back: nobody notices.

use crate::world::{VICTIM, lossless, paths, soon_answer, two_nodes};
use anyhow::Result;
use nix::sys::signal::Signal;
use std::{thread, time::Duration};
use tests::{
    agent::SocketLb,
    load::{Kind, Load, Path},
    manifests,
    probe::Proto,
    topology::cluster::{Cluster, Origin::Pod},
};

/// How long an agent lives that is killed while it starts, in ms: from before it has opened a
/// pin to after it is in sync.
const LIVES: [u64; 8] = [5, 30, 80, 150, 250, 400, 700, 1200];

/// The ClusterIP of the service with a backend on each node.
const WEB: &str = "10.96.0.10";

fn restarts(socket_lb: SocketLb) -> Result<()> {
    let mut cluster = two_nodes(socket_lb)?;
    let mut load = Load::start(&cluster, &paths()?)?;
    for round in ["first", "second"] {
        cluster.nodes[VICTIM].agent.stop()?;
        load.checkpoint(&format!("{round} stop"))?;
        start(&mut cluster)?;
        load.checkpoint(&format!("{round} start"))?;
        cluster.nodes[VICTIM].agent.kill(Signal::SIGKILL)?;
        load.checkpoint(&format!("{round} kill"))?;
        start(&mut cluster)?;
        load.checkpoint(&format!("{round} start after a kill"))?;
    }
    let report = lossless(load, &format!("restarts with socket LB {socket_lb:?}"))?;
    assert!(report.of(Kind::Connections).ok > 100, "too little was tried:\n{report}");
    Ok(())
}

fn start(cluster: &mut Cluster) -> Result<()> {
    let node = &mut cluster.nodes[VICTIM];
    node.agent.start(&node.host.netns)?;
    node.agent.wait_in_sync()
}

#[test]
fn restarts_lose_nothing_in_the_packet_path() -> Result<()> {
    restarts(SocketLb::Off)
}

#[test]
fn restarts_lose_nothing_with_socket_lb() -> Result<()> {
    restarts(SocketLb::All)
}

#[test]
fn an_agent_that_is_killed_while_it_starts_loses_nothing() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    let mut load = Load::start(&cluster, &paths()?)?;
    cluster.nodes[VICTIM].agent.kill(Signal::SIGKILL)?;
    for life in LIVES {
        let node = &mut cluster.nodes[VICTIM];
        node.agent.start(&node.host.netns)?;
        thread::sleep(Duration::from_millis(life));
        node.agent.kill(Signal::SIGKILL)?;
        load.checkpoint(&format!("killed after {life} ms"))?;
    }
    start(&mut cluster)?;
    load.checkpoint("in sync at last")?;
    lossless(load, "killed while starting").map(drop)
}

#[test]
fn changes_while_the_agent_is_away_are_made_up_for_without_a_loss() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    // A datagram that is on its way when its backend is taken away has nobody to answer it.
    let stays =
        |path: &Path| path.proto == Proto::Tcp || path.to.port() != 53 || path.to.ip().to_string() != WEB;
    let paths: Vec<_> = paths()?.into_iter().filter(stays).collect();
    let mut load = Load::start(&cluster, &paths)?;
    cluster.nodes[VICTIM].agent.stop()?;
    let mut objects = manifests::two_nodes()?;
    let endpoints = &mut manifests::find(&mut objects, "EndpointSlice", "web-4")?["endpoints"];
    endpoints.as_array_mut().into_iter().for_each(|endpoints| endpoints.truncate(1));
    cluster.nodes[VICTIM].agent.write(&objects)?;
    load.checkpoint("changes that nobody sees")?;
    start(&mut cluster)?;
    load.checkpoint("in sync")?;
    // The stream to the endpoint that is gone goes on; new connections do not go there.
    soon_answer(&cluster, Pod(VICTIM, 1), &format!("{WEB}:90"), &["pod1-1"])?;
    load.checkpoint("new connections")?;
    lossless(load, "changes while the agent was away").map(drop)
}

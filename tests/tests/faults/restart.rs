//! Agents end, by a supervisor or by a crash, and come back: nobody notices.

use crate::world::{VICTIM, lossless, paths, two_nodes};
use anyhow::Result;
use nix::sys::signal::Signal;
use std::{thread, time::Duration};
use tests::{
    agent::SocketLb,
    load::{Kind, Load},
    topology::cluster::Cluster,
};

/// How long an agent lives that is killed while it starts, in ms: from before it has opened a
/// pin to after it is in sync.
const LIVES: [u64; 8] = [5, 30, 80, 150, 250, 400, 700, 1200];

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

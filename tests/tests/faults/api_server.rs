//! The API server goes away and comes back.

use crate::world::{VICTIM, lossless, paths, soon_answer};
use anyhow::Result;
use nix::sys::signal::Signal;
use std::sync::Arc;
use tests::{
    agent::{Agent, SocketLb},
    control_plane::{Options, SharedControlPlane},
    load::Load,
    manifests,
    skip::skipped,
    topology::cluster::{Cluster, Origin::Pod},
};

#[test]
fn an_outage_of_the_api_server_is_not_noticed_even_by_a_restarting_agent() -> Result<()> {
    if std::env::var_os("KUBEBUILDER_ASSETS").is_none() {
        skipped("KUBEBUILDER_ASSETS names no API server: cargo xtask test faults builds one");
        return Ok(());
    }
    let options = Options { service_ranges: "10.96.0.0/16,fd00:96::/112".into(), ..Options::default() };
    let api = Arc::new(SharedControlPlane::start_with(options)?);
    let mut cluster = Cluster::build(2, &Agent::small(SocketLb::Off))?;
    for node in &mut cluster.nodes {
        node.agent.follow(api.show_in(&node.host.netns, true)?);
    }
    let mut objects = manifests::two_nodes()?;
    cluster.start(&objects)?;
    soon_answer(&cluster, Pod(VICTIM, 1), "10.96.0.10:90", &["pod1-1", "pod2-1"])?;
    let mut load = Load::start(&cluster, &paths()?)?;
    api.stop_api_server()?;
    load.checkpoint("the API server is gone")?;
    let node = &mut cluster.nodes[VICTIM];
    node.agent.kill(Signal::SIGKILL)?;
    node.agent.start(&node.host.netns)?;
    node.agent
        .wait_for("that it attaches without a list", |line| line.message().starts_with("no complete list"))?;
    load.checkpoint("an agent started without one")?;
    api.start_api_server()?;
    cluster.nodes[VICTIM].agent.wait_in_sync()?;
    load.checkpoint("the API server is back")?;
    let vip = manifests::find(&mut objects, "EndpointSlice", "vip-4")?;
    vip["endpoints"].as_array_mut().into_iter().for_each(|endpoints| endpoints.truncate(1));
    cluster.nodes[VICTIM].agent.write(&objects)?;
    soon_answer(&cluster, Pod(VICTIM, 1), "10.96.0.50:80", &["pod1-1"])?;
    load.checkpoint("a change is followed")?;
    lossless(load, "an outage of the API server").map(drop)
}

//! The harness waits for an agent that is slow to hear of what was written, and for every kind.

use std::{sync::Arc, thread, time::Duration};

use anyhow::{Context, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tests::{
    agent::{Agent, SocketLb},
    control_plane::{Options, SharedControlPlane},
    manifests,
    probe::{Outcome, Proto},
    topology::cluster::{Cluster, Origin::Pod},
};

/// The agent hears of nothing for so long; a wait that gave up earlier would be noticed.
const DEAF: Duration = Duration::from_secs(3);
const VIP: &str = "10.96.0.50:80";

struct World {
    // Processes go before the namespaces they live in.
    cluster: Cluster,
    objects: Vec<Value>,
}

impl World {
    fn build() -> Result<Self> {
        let options = Options { service_ranges: "10.96.0.0/16,fd00:96::/112".into(), ..Options::default() };
        let api = Arc::new(SharedControlPlane::start_with(options)?);
        let mut cluster = Cluster::build(2, &Agent::small(SocketLb::Off))?;
        for node in &mut cluster.nodes {
            node.agent.follow(api.show_in(&node.host.netns, true)?);
        }
        let objects = manifests::two_nodes()?;
        cluster.start(&objects)?;
        Ok(Self { cluster, objects })
    }

    /// Writes the objects while the agent of the first node is held up, and waits for it.
    fn write_to_a_slow_agent(&mut self) -> Result<()> {
        let agent = &mut self.cluster.nodes[0].agent;
        let process = Pid::from_raw(agent.process_id()?.try_into()?);
        kill(process, Signal::SIGSTOP)?;
        let written = agent.write(&self.objects);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(DEAF);
                kill(process, Signal::SIGCONT)
            });
            written.and_then(|()| agent.wait_in_sync())
        })
    }

    fn servers(&self) -> Result<Vec<String>> {
        let outcomes = self.cluster.dial(Pod(0, 1), Proto::Http, VIP.parse()?, 20)?;
        let mut servers: Vec<_> = outcomes.iter().map(server).collect();
        servers.sort();
        servers.dedup();
        Ok(servers)
    }
}

fn server(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Answered(answer) => answer.server.clone(),
        other => other.to_string(),
    }
}

#[test]
fn what_was_written_is_served_when_the_wait_for_a_slow_agent_ends() -> Result<()> {
    let mut world = World::build()?;
    assert_eq!(world.servers()?, ["pod1-1", "pod2-1"]);
    let slice = manifests::find(&mut world.objects, "EndpointSlice", "vip-4")?;
    slice["endpoints"].as_array_mut().context("no endpoints")?.truncate(1);
    world.write_to_a_slow_agent()?;
    assert_eq!(world.servers()?, ["pod1-1"]);
    // A deletion, of which the API server keeps no object.
    world.objects.retain(|object| object["kind"] != "EndpointSlice" || object["metadata"]["name"] != "vip-4");
    world.write_to_a_slow_agent()?;
    assert_eq!(world.servers()?, [Outcome::Refused.to_string()]);
    // Nothing has to be written: nothing to wait for.
    world.cluster.nodes[0].agent.write(&world.objects)?;
    world.cluster.nodes[0].agent.wait_in_sync()
}

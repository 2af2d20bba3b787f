//! The agent comes and goes; the traffic does not notice.

use crate::world::{LINE, Open, answer, is_served, soon, two_nodes, two_nodes_with_clsact};
use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use tests::{
    agent::SocketLb,
    manifests,
    probe::Bulk,
    topology::cluster::{
        Cluster,
        Origin::{self, Client, Node, Pod},
    },
};

/// One origin for every path through the programs of node 2.
const WAYS: [(Origin, &str); 5] = [
    (Pod(1, 1), "10.96.0.20:90"),
    (Pod(1, 1), "[fd00:96::20]:90"),
    (Node(1), "10.96.0.20:90"),
    (Client, "192.168.50.12:30190"),
    (Client, "[fd00:50::12]:30190"),
];

fn all_work(cluster: &Cluster) -> Result<()> {
    WAYS.iter().try_for_each(|(from, to)| answer(cluster, *from, LINE, to).map(drop))
}

/// The workers keep the connections, so no borrow of the cluster is needed meanwhile.
fn use_open_ones(cluster: &Cluster) -> Result<()> {
    let some = Bulk { up: 1000, down: 1000 };
    WAYS.iter().try_for_each(|(from, to)| Open::again(cluster, *from, to).outlives(some).map(drop))
}

fn survives(mut cluster: Cluster, end: impl FnOnce(&mut Cluster) -> Result<()>) -> Result<()> {
    for (from, to) in WAYS {
        Open::new(&cluster, from, to)?;
    }
    end(&mut cluster)?;
    use_open_ones(&cluster)?;
    all_work(&cluster)?;
    let node = &mut cluster.nodes[1];
    node.agent.start(&node.host.netns)?;
    node.agent.wait_adopted()?;
    use_open_ones(&cluster)?;
    all_work(&cluster)
}

#[test]
fn connections_survive_a_restart() -> Result<()> {
    for cluster in [two_nodes(SocketLb::All)?, two_nodes(SocketLb::Off)?, two_nodes_with_clsact()?] {
        survives(cluster, |cluster| cluster.nodes[1].agent.stop())?;
    }
    Ok(())
}

#[test]
fn connections_survive_a_killed_agent() -> Result<()> {
    survives(two_nodes(SocketLb::Off)?, |cluster| cluster.nodes[1].agent.kill(Signal::SIGKILL))
}

#[test]
fn changes_while_no_agent_runs_are_made_up_for() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    let mut objects = manifests::two_nodes()?;
    answer(&cluster, Pod(1, 1), LINE, "10.96.0.20:90")?;
    cluster.nodes[1].agent.stop()?;
    manifests::find(&mut objects, "Service", "one")?["spec"]["clusterIP"] = "10.96.0.21".into();
    manifests::find(&mut objects, "Service", "one")?["spec"]["clusterIPs"] =
        serde_json::json!(["10.96.0.21"]);
    let node = &mut cluster.nodes[1];
    node.agent.write(&objects)?;
    node.agent.start(&node.host.netns)?;
    node.agent.wait_in_sync()?;
    answer(&cluster, Pod(1, 1), LINE, "10.96.0.21:90")?;
    assert!(!is_served(&cluster, Pod(1, 1), "10.96.0.20:90")?, "the old address is not served");
    Ok(())
}

#[test]
fn a_change_of_the_manifests_is_followed() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    let mut objects = manifests::two_nodes()?;
    manifests::find(&mut objects, "EndpointSlice", "one-4")?["endpoints"][0]["addresses"][0] =
        "10.244.2.10".into();
    for node in &mut cluster.nodes {
        node.agent.write(&objects)?;
        node.agent.wait_in_sync()?;
    }
    assert_eq!(answer(&cluster, Pod(0, 1), LINE, "10.96.0.20:90")?.server, "pod2-1");
    Ok(())
}

#[test]
fn cleanup_leaves_nothing() -> Result<()> {
    for mut cluster in [two_nodes(SocketLb::All)?, two_nodes(SocketLb::Off)?, two_nodes_with_clsact()?] {
        all_work(&cluster)?;
        let node = &mut cluster.nodes[1];
        node.agent.stop()?;
        node.agent.shunt(&node.host.netns, &["cleanup"])?;
        ensure!(!node.agent.pins().exists(), "pins are left");
        for (from, to) in WAYS {
            soon(|| {
                ensure!(!is_served(&cluster, from, to)?, "{from:?} → {to} is still served");
                Ok(())
            })?;
        }
        // What never needed an agent works on.
        answer(&cluster, Pod(1, 1), LINE, "10.244.1.10:9090")?;
    }
    Ok(())
}

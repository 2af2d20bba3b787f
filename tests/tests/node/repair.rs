//! What others take away from a node is put back, and the node's health tells of what cannot be.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use tests::{
    agent::SocketLb,
    late,
    topology::cluster::{
        Cluster, Node,
        Origin::{self, Client, Pod},
    },
};

use crate::{
    health::wait_for_health,
    http::{METRICS, get},
    metrics::wait_for,
    world::{LINE, answer, soon, two_nodes, two_nodes_with_clsact},
};

/// By the pod's device, and by that of the wire. The second node's programs serve both.
const WAYS: [(Origin, &str); 2] = [(Pod(1, 1), "10.96.0.20:90"), (Client, "192.168.50.12:30190")];

fn all_work(cluster: &Cluster) -> Result<()> {
    WAYS.iter().try_for_each(|(from, to)| answer(cluster, *from, LINE, to).map(drop))
}

/// Waits until the second node has put back at least `count` things of this kind.
fn put_back(cluster: &Cluster, part: &str, count: u32) -> Result<()> {
    let line = format!("shunt_repaired_attachments_total{{part=\"{part}\"}} ");
    let (node, counted) = (&cluster.nodes[1], |text: &str| text.parse::<u32>().unwrap_or(0));
    soon(|| {
        let text = crate::metrics::scrape(node, "/metrics")?.0;
        let found = text.lines().find_map(|other| other.strip_prefix(&line)).map_or(0, counted);
        ensure!(found >= count, late!("{found} of {count} {part} put back"));
        Ok(())
    })
}

/// The pins of the agent's maps or links.
fn pins(node: &Node, kind: &str) -> PathBuf {
    node.agent.pins().join("current").join(kind)
}

fn remove_links(node: &Node, prefix: &str) -> Result<u32> {
    let mut removed = 0;
    for entry in fs::read_dir(pins(node, "links"))? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)) {
            fs::remove_file(path)?;
            removed += 1;
        }
    }
    ensure!(removed > 0, "there is no link {prefix}*");
    Ok(removed)
}

#[test]
fn programs_at_devices_are_put_back() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    all_work(&cluster)?;
    let removed = remove_links(&cluster.nodes[1], "tcx-")?;
    put_back(&cluster, "program", removed)?;
    all_work(&cluster)?;
    // Loopback is an edge, which hands on what comes from the host's own addresses.
    cluster.nodes[1].host.netns.sysctl(&[("ipv4/conf/lo/route_localnet", "0")])?;
    put_back(&cluster, "loopback", 1)?;
    wait_for(&cluster.nodes[1], r#"shunt_repaired_attachments_total{part="socket_hook"} 0"#)
}

#[test]
fn socket_hooks_and_pins_are_put_back() -> Result<()> {
    let cluster = two_nodes(SocketLb::All)?;
    all_work(&cluster)?;
    let node = &cluster.nodes[1];
    let removed = remove_links(node, "sock_")?;
    put_back(&cluster, "socket_hook", removed)?;
    all_work(&cluster)?;
    let lost = [
        pins(node, "maps").join("conntrack_v4"),
        pins(node, "links").join("sweep_v4"),
        node.agent.pins().join("current"),
    ];
    for path in &lost {
        fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    }
    put_back(&cluster, "pin", 3)?;
    ensure!(
        pins(node, "maps").join("conntrack_v4").exists() && pins(node, "links").join("sweep_v4").exists()
    );
    node.agent.shunt(&node.host.netns, &["conn", "list"])?;
    wait_for_health(node, 200, 200).map(drop)
}

#[test]
fn filters_are_put_back_and_what_stands_in_their_way_is_told() -> Result<()> {
    let cluster = two_nodes_with_clsact()?;
    all_work(&cluster)?;
    let node = &cluster.nodes[1];
    let tc = |arguments: &[&str]| node.host.netns.output("tc", arguments);
    tc(&["qdisc", "del", "dev", "eth0", "clsact"])?;
    put_back(&cluster, "program", 2)?;
    all_work(&cluster)?;
    tc(&["filter", "del", "dev", "eth0", "egress"])?;
    put_back(&cluster, "program", 3)?;
    all_work(&cluster)?;
    tc(&["qdisc", "del", "dev", "eth0", "clsact"])?;
    tc(&["qdisc", "add", "dev", "eth0", "ingress"])?;
    let body = wait_for_health(node, 503, 200)?;
    ensure!(body["reason"].as_str().is_some_and(|reason| reason.contains("not attached")), "{body}");
    let slis = get(node, METRICS, "/metrics/slis")?;
    for check in [r#"name="programs",type="healthz"} 0"#, r#"name="programs",type="livez"} 1"#] {
        let line = format!("kubernetes_healthcheck{{{check}\n");
        ensure!(slis.text()?.contains(&line), "no {line} in {}", slis.text()?);
    }
    node.agent.wait_for("what stands in the way", |line| {
        line.message().contains("cannot attach") && line.text().contains("clsact")
    })?;
    tc(&["qdisc", "del", "dev", "eth0", "ingress"])?;
    wait_for_health(node, 200, 200)?;
    all_work(&cluster)
}

#[test]
fn an_agent_whose_pins_are_removed_asks_for_a_restart() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    let node = &mut cluster.nodes[1];
    node.agent.shunt(&node.host.netns, &["cleanup", "--force"])?;
    let body = wait_for_health(node, 503, 503)?;
    ensure!(body["reason"].as_str().is_some_and(|reason| reason.contains("a restart")), "{body}");
    ensure!(!node.agent.pins().join("current").exists(), "cleanup was undone");
    node.agent.stop()?;
    node.agent.start(&node.host.netns)?;
    node.agent.wait_in_sync()?;
    wait_for_health(node, 200, 200)?;
    all_work(&cluster)
}

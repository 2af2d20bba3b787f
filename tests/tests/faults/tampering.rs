//! Somebody else writes to the maps: the agent puts it right, and nobody else is disturbed.

use crate::world::{VICTIM, lossless, paths, soon_answer};
use anyhow::{Result, ensure};
use proxy_common::maps::backends::Backend;
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore},
    kernel::{KernelMaps, PinnedMaps, Pins},
};
use serde_json::json;
use tests::{
    agent::{Agent, Line, SocketLb},
    late,
    load::Load,
    manifests,
    topology::cluster::{Cluster, Origin::Pod},
};

/// The service that is tampered with: on both nodes, and not under load.
const VIP: &str = "10.96.0.50:80";

/// Does harm, and waits until the agent says that it has repaired something.
fn repaired(cluster: &Cluster, harm: impl FnOnce() -> Result<()>) -> Result<()> {
    let agent = &cluster.nodes[VICTIM].agent;
    let repairs = || {
        let is_one = |line: &&Line| line.message() == "repaired rows that others have changed";
        agent.lines().iter().filter(is_one).count()
    };
    let before = repairs();
    harm()?;
    late::poll(late::SOON, || {
        agent.ensure_alive()?;
        ensure!(repairs() > before, late!("nothing was repaired"));
        Ok(())
    })
}

#[test]
fn rows_that_others_change_are_repaired_under_load() -> Result<()> {
    let shunt = Agent::small(SocketLb::Off);
    let mut cluster = Cluster::build(2, &shunt)?;
    let kube_proxy = json!({
        "detectLocalMode": "ClusterCIDR",
        "clusterCIDR": "10.244.0.0/16,fd00:244::/32",
        "nftables": {"syncPeriod": "1s"},
    });
    cluster.nodes[VICTIM].agent.configure(&kube_proxy, &shunt)?;
    cluster.start(&manifests::two_nodes()?)?;
    let mut load = Load::start(&cluster, &paths()?)?;
    let pins = Pins::new(cluster.nodes[VICTIM].agent.pins());
    let from = Pod(VICTIM, 1);
    let services = PinnedMaps::open(pins.clone())?.services()?;
    let ours = |name: &str| name.starts_with("demo/vip");
    let ids: Vec<u32> = services.iter().filter(|(_, row)| ours(row.name())).map(|(id, _)| *id).collect();
    ensure!(!ids.is_empty(), "no service {VIP}");

    let mut maps = KernelMaps::open(&pins)?;
    let frontends = maps.v4().frontends()?;
    let (keys, rows): (Vec<_>, Vec<_>) =
        frontends.into_iter().filter(|(_, row)| ids.contains(&row.service)).unzip();
    repaired(&cluster, || Ok(maps.v4().delete_frontends(&keys)?))?;
    soon_answer(&cluster, from, VIP, &["pod1-1", "pod2-1"])?;
    load.checkpoint("frontends deleted")?;

    let range = rows.iter().map(|row| row.cluster).find(|range| range.len > 0);
    let range = range.ok_or_else(|| anyhow::anyhow!("no slots"))?;
    let mut slots = vec![0; range.len as usize];
    maps.v4().slots(range.offset, &mut slots)?;
    let wrong: Vec<_> = slots.iter().map(|id| (*id, Backend::default())).collect();
    repaired(&cluster, || Ok(maps.v4().put_backends(&wrong)?))?;
    soon_answer(&cluster, from, VIP, &["pod1-1", "pod2-1"])?;
    load.checkpoint("backends blanked")?;

    repaired(&cluster, || Ok(maps.v4().put_slots(range.offset, &vec![0; slots.len()])?))?;
    soon_answer(&cluster, from, VIP, &["pod1-1", "pod2-1"])?;
    load.checkpoint("slots blanked")?;
    lossless(load, "rows that others changed").map(drop)
}

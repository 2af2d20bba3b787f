//! Links come and go.

use crate::world::{VICTIM, lossless, paths, servers, soon_answer, two_nodes};
use anyhow::{Result, ensure};
use std::{thread, time::Duration};
use tests::{
    agent::SocketLb,
    load::{Kind, Load},
    topology::cluster::Origin::Pod,
};

const ONE: &str = "10.96.0.20:90";
const ONE6: &str = "[fd00:96::20]:90";

#[test]
fn a_pod_whose_link_is_replaced_is_served_again_and_others_do_not_notice() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    cluster.nodes[VICTIM].add_pod()?;
    let third = Pod(VICTIM, 2);
    soon_answer(&cluster, third, ONE, &["pod1-1"])?;
    let mut load = Load::start(&cluster, &paths()?)?;
    for round in 1..=3 {
        let node = &cluster.nodes[VICTIM];
        node.unplug(2)?;
        ensure!(servers(&cluster, third, ONE, 1).is_err(), "the link is still there");
        node.plug(&node.pods[2])?;
        soon_answer(&cluster, third, ONE, &["pod1-1"])?;
        soon_answer(&cluster, third, ONE6, &["pod1-1"])?;
        load.checkpoint(&format!("flap {round}"))?;
    }
    lossless(load, "a pod's link that is replaced").map(drop)
}

#[test]
fn connections_outlive_an_uplink_without_carrier() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let mut load = Load::start(&cluster, &paths()?)?;
    let (lan, port) = cluster.far_end(VICTIM);
    for round in 1..=2 {
        lan.ip(&format!("link set {port} down"))?;
        thread::sleep(Duration::from_millis(300));
        lan.ip(&format!("link set {port} up"))?;
        load.checkpoint(&format!("carrier lost {round}"))?;
    }
    let report = load.finish()?;
    println!("{report}");
    // The wire loses packets; what TCP makes good counts as well here.
    for kind in [Kind::Stream, Kind::Connections] {
        let counts = report.of(kind);
        ensure!(counts.failures() == 0, "{kind}: {counts}\n{report}");
    }
    ensure!(report.of(Kind::Stream).lost_segments > 0, "the wire lost nothing");
    let load = Load::start(&cluster, &paths()?)?;
    lossless(load, "after the carrier came back").map(drop)
}

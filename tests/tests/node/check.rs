//! What `shunt check` says of a node, with and without an agent.

use crate::{
    world::{soon, two_nodes, two_nodes_with_clsact},
    xdp,
};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{
    net::TcpListener,
    process::{Command, Stdio},
};
use tests::{
    agent::SocketLb,
    late,
    process::{Spawn, binary},
    topology::cluster::Node,
};

/// The exit status and the report.
fn check(node: &Node) -> Result<(bool, Value)> {
    let mut command = Command::new(binary("shunt")?);
    command.args(["check", "-o", "json", "--bpffs"]).arg(node.agent.pins());
    let output = command.netns(&node.host.netns)?.stderr(Stdio::inherit()).output()?;
    Ok((output.status.success(), serde_json::from_slice(&output.stdout)?))
}

fn finding<'a>(report: &'a Value, check: &str) -> Result<&'a Value> {
    let checks = report["checks"].as_array().context("checks")?;
    checks.iter().find(|finding| finding["check"] == check).with_context(|| check.to_owned())
}

fn device<'a>(report: &'a Value, interface: &str) -> Result<&'a Value> {
    let devices = report["devices"].as_array().context("devices")?;
    devices
        .iter()
        .find(|device| device["interface"] == interface)
        .with_context(|| format!("{interface}: {report}"))
}

#[test]
fn a_node_in_order_with_and_without_its_agent() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    for running in [true, false] {
        if !running {
            cluster.nodes[0].agent.stop()?;
        }
        let (ok, report) = check(&cluster.nodes[0])?;
        assert!(ok && report["ok"] == true, "{report}");
        let eth0 = device(&report, "eth0")?;
        assert_eq!((&eth0["tc"]["ingress"], &eth0["tc"]["egress"]), (&"tcx".into(), &"tcx".into()));
        assert_eq!((&eth0["xdp"]["configured"], &eth0["xdp"]["mode"]), (&"off".into(), &"none".into()));
        assert_eq!(finding(&report, "sockets")?["detail"], "10 of 10 hooks attached");
        let port = finding(&report, "health port")?["detail"].as_str().unwrap_or_default();
        assert_eq!(port.contains("the agent's"), running, "{port}");
    }
    Ok(())
}

#[test]
fn filters_of_clsact_at_every_edge() -> Result<()> {
    let cluster = two_nodes_with_clsact()?;
    for _ in 0..10 {
        let (ok, report) = check(&cluster.nodes[0])?;
        assert!(ok, "{report}");
        for interface in ["eth0", "pod1-1", "pod1-2", "lo"] {
            let tc = &device(&report, interface)?["tc"];
            assert_eq!((&tc["ingress"], &tc["egress"]), (&"clsact".into(), &"clsact".into()), "{interface}");
        }
    }
    Ok(())
}

#[test]
fn xdp_of_every_device_with_the_reason() -> Result<()> {
    let mut cluster = xdp::with_links_of_every_kind("native")?;
    let reported = |node: &Node| {
        let (ok, report) = check(node)?;
        ensure!(ok, "{report}");
        ensure!(device(&report, "eth0")?["xdp"]["mode"] == "native", late!("{report}"));
        Ok(report)
    };
    soon(|| reported(&cluster.nodes[0]).map(drop))?;
    cluster.nodes[0].agent.stop()?;
    let report = reported(&cluster.nodes[0])?;
    let bridge = &device(&report, "xbridge")?["xdp"];
    assert_eq!((&bridge["configured"], &bridge["mode"]), (&"native".into(), &"none".into()));
    assert!(bridge["reason"].as_str().is_some_and(|reason| reason.contains("native mode")), "{bridge}");
    assert_eq!(finding(&report, "XDP")?["state"], "warning");
    Ok(())
}

#[test]
fn rules_of_kube_proxy_are_named() -> Result<()> {
    let cluster = two_nodes(SocketLb::All)?;
    let node = &cluster.nodes[0];
    node.host.netns.nft("table ip kube-proxy {}\ntable ip nat {\nchain KUBE-SERVICES {}\n}\n")?;
    let (ok, report) = check(node)?;
    assert!(ok, "packets meet the programs first: {report}");
    let rules = finding(&report, "kube-proxy")?;
    let detail = rules["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("nftables has its table") && detail.contains("iptables"), "{detail}");
    assert_eq!(rules["state"], "warning");
    Ok(())
}

#[test]
fn what_is_in_the_way_ends_it_with_status_1() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    let node = &mut cluster.nodes[0];
    node.agent.stop()?;
    let _other = node.host.netns.run(|| Ok(TcpListener::bind("0.0.0.0:10256")?))?;
    let (ok, report) = check(node)?;
    assert!(!ok && report["ok"] == false, "{report}");
    assert_eq!(finding(&report, "health port")?["state"], "error");
    assert_eq!(finding(&report, "kernel")?["state"], "ok");
    Ok(())
}

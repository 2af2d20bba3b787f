//! What a scraper gets.

use crate::{
    world::{is_served, soon, two_nodes},
    xdp,
};
use anyhow::{Result, ensure};
use std::{
    io::{Read, Write},
    net::TcpStream,
};
use tests::{
    agent::SocketLb,
    topology::cluster::{Node, Origin::Pod},
};

fn get(node: &Node, path: &str) -> Result<String> {
    node.host.netns.run(|| {
        let mut stream = TcpStream::connect("127.0.0.1:10249")?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })
}

/// Waits for a line of `/metrics` that begins so.
pub(crate) fn wait_for(node: &Node, line: &str) -> Result<()> {
    soon(|| {
        let text = get(node, "/metrics")?;
        ensure!(text.lines().any(|other| other.starts_with(line)), "no {line} in {text}");
        Ok(())
    })
}

#[test]
fn refusals_levels_and_sources_are_counted() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let node = &cluster.nodes[0];
    wait_for(node, r#"shunt_drops_total{reason="unknown-port"} 0"#)?;
    assert!(!is_served(&cluster, Pod(0, 1), "10.96.0.20:999")?);
    wait_for(node, r#"shunt_drops_total{reason="unknown-port"} 1"#)?;
    wait_for(node, r#"shunt_map_capacity{map="frontends",ip_family="IPv4"} 1024"#)?;
    wait_for(node, r#"shunt_rejected_objects_total{kind="Service"} 0"#)?;
    wait_for(node, r#"shunt_xdp_mode{interface="eth0",configured="off",mode="none",reason=""} 1"#)?;
    let healthz = get(node, "/healthz")?;
    assert!(healthz.starts_with("HTTP/1.0 200") && healthz.ends_with("ok"), "{healthz}");
    Ok(())
}

#[test]
fn xdp_modes_have_their_reason() -> Result<()> {
    let cluster = xdp::with_links_of_every_kind("native")?;
    let node = &cluster.nodes[0];
    wait_for(node, r#"shunt_xdp_mode{interface="eth0",configured="native",mode="native",reason=""} 1"#)?;
    wait_for(
        node,
        r#"shunt_xdp_mode{interface="xbridge",configured="native",mode="none",reason="the kernel says: "#,
    )
}

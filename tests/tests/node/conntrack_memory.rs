//! Connections take no more memory than the operator has said.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::{
    agent::{Agent, SocketLb},
    late,
    topology::cluster::{Cluster, Node, Origin::Client},
};

use crate::{
    metrics::gauge,
    world::{LINE, answer, configured, soon},
};

/// Masqueraded, so that each connection takes several rows.
const TO: &str = "192.168.50.12:30090";
/// Rows that the table begins with.
const BEGIN: u32 = 1024;
/// Not twice as many rows fit in this.
const LIMIT: f64 = 900_000.0;
/// More connections than that are not to be needed.
const MOST: usize = 2_000;

/// Rows of the IPv4 table by this gauge.
fn rows(node: &Node, metric: &str) -> Result<f64> {
    gauge(node, metric, &[("map", "conntrack"), ("ip_family", "IPv4")])
}

/// Bytes that the tables of both families take.
fn memory(node: &Node) -> Result<f64> {
    let of = |family| gauge(node, "shunt_conntrack_memory_bytes", &[("ip_family", family)]);
    Ok(of("IPv4")? + of("IPv6")?)
}

fn connect(cluster: &Cluster) -> Result<Option<TcpStream>> {
    let to: SocketAddr = TO.parse()?;
    // The second SYN comes after a second.
    Ok(cluster.client.netns.run(|| Ok(TcpStream::connect_timeout(&to, Duration::from_secs(5))))?.ok())
}

/// A request for nothing, which is answered by a line.
fn asks(stream: &TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    (&*stream).write_all(b"0 0\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    ensure!(!line.is_empty(), "closed");
    Ok(())
}

#[test]
fn connections_take_no_more_memory_than_they_may() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["maps"]["conntrack"] = json!(BEGIN);
    shunt["maps"]["conntrackMemory"] = json!(LIMIT.to_string());
    let cluster = configured(&shunt)?;
    let node = &cluster.nodes[1];
    ensure!(soon(|| rows(node, "shunt_map_capacity"))? == f64::from(BEGIN));
    ensure!(gauge(node, "shunt_conntrack_memory_limit_bytes", &[])? == LIMIT);
    let mut open = Vec::new();
    let more = |open: &mut Vec<TcpStream>| -> Result<bool> {
        ensure!(open.len() < MOST, "{MOST} connections, and none was refused");
        let stream = connect(&cluster)?;
        let opened = stream.is_some();
        open.extend(stream);
        Ok(opened)
    };
    // Four fifths of the table, and it grows as far as it may.
    while open.len() < BEGIN as usize / 4 * 9 / 10 {
        ensure!(more(&mut open)?, "connection {} has no answer", open.len());
    }
    let most = soon(|| {
        let rows = rows(node, "shunt_map_capacity")?;
        ensure!(rows > f64::from(BEGIN), late!("room for {rows} rows still"));
        Ok(rows)
    })?;
    ensure!(most < 2.0 * f64::from(BEGIN), "room for {most} rows takes more than {LIMIT} bytes");
    while more(&mut open)? {}
    soon(|| {
        let rows = rows(node, "shunt_map_rows")?;
        ensure!(rows > 0.9 * most && rows <= most, late!("{rows} rows of {most}"));
        let memory = memory(node)?;
        ensure!(memory > 0.0 && memory <= LIMIT, "{memory} bytes for {rows} rows");
        let told = node.agent.lines().iter().any(|line| line.field("reason") == "ConntrackFull");
        ensure!(told, late!("nothing in the log"));
        Ok(())
    })?;
    for (number, stream) in open.iter().enumerate() {
        asks(stream).with_context(|| format!("connection {number} of {}", open.len()))?;
    }
    // Those that end make room.
    drop(open);
    soon(|| answer(&cluster, Client, LINE, TO).map(drop).map_err(|error| late!("{error:#}").into()))
}

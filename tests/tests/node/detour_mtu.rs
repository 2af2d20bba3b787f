//! Path MTU discovery where the outer header of direct server return takes its share, which
//! the datapath alone knows of.

use crate::{
    icmp::{at, connect, provoke},
    world::{LINE, Open, answer},
};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use std::net::SocketAddr;
use tests::{
    agent::{Agent, SocketLb},
    manifests,
    probe::Bulk,
    topology::cluster::{Cluster, Origin::Client},
};

/// Node 2, whose NodePorts lead to node 1.
const ADDRESSES: [&str; 2] = ["192.168.50.12", "fd00:50::12"];
const TCP: u16 = 30190;
const UDP: u16 = 30153;

fn by_dsr(xdp: &str) -> Result<Cluster> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["loadBalancer"] = json!({"mode": "dsr"});
    shunt["xdp"] = xdp.into();
    let mut cluster = Cluster::build(2, &shunt)?;
    cluster.wire()?;
    cluster.start(&manifests::two_nodes()?)?;
    // Neighbours are resolved, so that drivers can send at once.
    for address in ADDRESSES {
        answer(&cluster, Client, LINE, &at(address, TCP).to_string())?;
    }
    Ok(cluster)
}

/// The client is told `mtu` for a datagram of `bytes` that is too big, and its transfers go on with packets that fit.
fn finds(cluster: &Cluster, address: &str, bytes: usize, mtu: u32) -> Result<()> {
    let to = at(address, UDP);
    let told = provoke(&connect(cluster, Client, to)?, bytes)?;
    let told = (told.errno, told.mtu, told.about);
    ensure!(told == (libc::EMSGSIZE, mtu, Some(to)), "{told:?} and not {mtu}");
    let line: SocketAddr = at(address, TCP);
    let answer = Open::new(cluster, Client, &line.to_string())?.send(Bulk { up: 1 << 20, down: 1 << 20 })?;
    ensure!((answer.server.as_str(), answer.received) == ("pod1-1", 1 << 20), "{answer}");
    Ok(())
}

#[test]
fn the_outer_header_of_dsr_counts() -> Result<()> {
    for xdp in ["off", "native"] {
        let cluster = by_dsr(xdp)?;
        // Datagrams that fill the link, and what is left of it.
        for (address, (bytes, mtu)) in ADDRESSES.into_iter().zip([(1472, 1480), (1452, 1460)]) {
            finds(&cluster, address, bytes, mtu).with_context(|| format!("XDP {xdp}, {address}"))?;
        }
    }
    Ok(())
}

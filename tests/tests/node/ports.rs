//! More connections than there are source ports to masquerade them by.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::{
    agent::{Agent, SocketLb},
    probe::{Bulk, Proto},
    topology::cluster::{Cluster, Origin::Client},
};

use crate::{
    operator::list,
    reload::{kube_proxy, wait_in_force},
    world::{Open, configured, is_served, soon},
};

/// Each backend has so many.
const PORTS: &str = "5000-5015";
const TCP: [&str; 2] = ["192.168.50.12:30090", "[fd00:50::12]:30090"];
const UDP: [&str; 2] = ["192.168.50.12:30053", "[fd00:50::12]:30053"];
/// Connections of a round.
const ROUND: u32 = 60;

/// One after the other: each gets the port of one that has ended. Those that stay keep theirs.
#[test]
fn ended_connections_give_way() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["snatPortRange"] = PORTS.into();
    let cluster = configured(&shunt)?;
    let kept = TCP.into_iter().flat_map(|to| (0..4).map(move |number| (to, number)));
    let kept: Vec<_> = kept.map(|(to, n)| Open::numbered(&cluster, Client, to, n)).collect::<Result<_>>()?;
    let mut before = carried(&cluster)?;
    for round in 1..=3 {
        for (proto, to) in TCP.map(|to| (Proto::Tcp, to)).into_iter().chain(UDP.map(|to| (Proto::Udp, to))) {
            for outcome in cluster.dial(Client, proto, to.parse()?, ROUND)? {
                outcome.answer(format_args!("{proto} {to}, round {round}"))?;
            }
        }
        for open in &kept {
            open.outlives(Bulk::default())?;
        }
        let now = carried(&cluster)?;
        // A connection has a handshake, a question, and an end.
        ensure!(now >= before + u64::from(2 * ROUND) * (4 * 40 + 2 * 28), "{before} → {now} bytes");
        before = now;
    }
    Ok(())
}

/// A node that has too few ports is given further addresses while it runs, and loses them again.
#[test]
fn further_addresses_have_further_ports() -> Result<()> {
    const FEW: usize = 4;
    // With one backend.
    const TO: [&str; 2] = ["192.168.50.12:30190", "[fd00:50::12]:30190"];
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["snatPortRange"] = "5000-5003".into();
    let cluster = configured(&shunt)?;
    let node = &cluster.nodes[1];
    let open = |to, numbers: std::ops::Range<usize>| {
        let opened = numbers.map(|number| Open::numbered(&cluster, Client, to, number as u32));
        opened.collect::<Result<Vec<_>>>()
    };
    let mut all = Vec::new();
    for to in TO {
        all.push(open(to, 0..FEW)?);
        ensure!(!is_served(&cluster, Client, to)?, "{to}: there are {FEW} ports");
    }
    let mut configure = |ranges: &[&str]| {
        shunt["masqueradeAddresses"] = json!(ranges);
        node.agent.configure(&kube_proxy(json!({})), &shunt)?;
        wait_in_force(node)
    };
    // Those of other nodes, too, as a DaemonSet has one configuration.
    configure(&["192.168.50.120/29", "192.168.50.12/32", "fd00:50::/64"])?;
    let further = ["192.168.50.121/24", "192.168.50.122/24", "fd00:50::121/64", "fd00:50::122/64"];
    let each = |verb: &str, options: &str| {
        let lines = further.map(|addr| format!("address {verb} {addr} dev eth0 {options}"));
        node.host.netns.ip(&lines.join("\n"))
    };
    each("add", "nodad")?;
    soon(|| masquerades_behind(&cluster, 6))?;

    for (to, open_ones) in TO.into_iter().zip(&mut all) {
        open_ones.extend(open(to, FEW..3 * FEW)?);
        ensure!(!is_served(&cluster, Client, to)?, "{to}: there are three times {FEW} ports");
        let sources = open_ones.iter().map(|open| Ok(open.outlives(Bulk::default())?.saw));
        let sources: BTreeSet<_> = sources.collect::<Result<_>>()?;
        assert_eq!(sources.len(), 3 * FEW, "{sources:?}");
        let addresses: BTreeSet<_> = sources.iter().map(|source| source.ip()).collect();
        ensure!(
            addresses.len() == 3 && addresses.is_subset(&masquerades_behind(&cluster, 6)?),
            "{addresses:?}"
        );
    }

    // It keeps the addresses, for the connections that have them.
    configure(&[])?;
    soon(|| masquerades_behind(&cluster, 2))?;
    for open in all.iter().flatten() {
        open.outlives(Bulk { up: 1000, down: 1000 })?;
    }
    Ok(())
}

/// The addresses behind which the second node masquerades what leaves by its uplink, of which there are to be
/// so many.
fn masquerades_behind(cluster: &Cluster, count: usize) -> Result<BTreeSet<IpAddr>> {
    let devices = list(cluster, 1, "device")?;
    let uplink = devices.iter().find(|device| device["interface"] == "eth0");
    let listed = uplink.and_then(|device| device["masquerade"].as_array()).into_iter().flatten();
    let found: BTreeSet<_> = listed.filter_map(Value::as_str).map(str::parse).collect::<Result<_, _>>()?;
    ensure!(found.len() == count, "{count} addresses to masquerade behind: {found:?}");
    Ok(found)
}

/// Bytes that clients have sent to services by the node.
fn carried(cluster: &Cluster) -> Result<u64> {
    let node = &cluster.nodes[1];
    let report: Value = serde_json::from_str(&node.agent.shunt(&node.host.netns, &["stats", "-o", "json"])?)?;
    let services = report["services"].as_array().into_iter().flatten();
    Ok(services.filter_map(|service| service["inBytes"].as_u64()).sum())
}

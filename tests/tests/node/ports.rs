//! More connections than there are source ports to masquerade them by.

use anyhow::{Result, ensure};
use serde_json::Value;
use tests::{
    agent::{Agent, SocketLb},
    probe::{Bulk, Proto},
    topology::cluster::{Cluster, Origin::Client},
};

use crate::world::{Open, configured};

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

/// Bytes that clients have sent to services by the node.
fn carried(cluster: &Cluster) -> Result<u64> {
    let node = &cluster.nodes[1];
    let report: Value = serde_json::from_str(&node.agent.shunt(&node.host.netns, &["stats", "-o", "json"])?)?;
    let services = report["services"].as_array().into_iter().flatten();
    Ok(services.filter_map(|service| service["inBytes"].as_u64()).sum())
}

//! Direct server return: the backend's node answers the client.

use crate::world::{Open, answer, configured};
use anyhow::Result;
use serde_json::json;
use std::net::IpAddr;
use tests::{
    agent::{Agent, SocketLb},
    probe::{Bulk, Proto},
    topology::cluster::{Cluster, Origin::Client},
};

/// Outside clients are answered by the backends' nodes.
pub(crate) fn cluster() -> Result<Cluster> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["loadBalancer"] = json!({"mode": "dsr"});
    configured(&shunt)
}

#[test]
fn the_backend_sees_the_client() -> Result<()> {
    let cluster = cluster()?;
    // The only backend is on node1.
    for to in ["192.168.50.12:30190", "192.168.50.11:30190", "[fd00:50::12]:30190"] {
        let answer = answer(&cluster, Client, Proto::Tcp, to)?;
        let client: [IpAddr; 2] = [cluster.client.v4.into(), cluster.client.v6.into()];
        assert!(client.contains(&answer.saw.ip()), "{answer}");
        assert_eq!(answer.server, "pod1-1");
    }
    Ok(())
}

#[test]
fn large_transfers_take_the_detour_of_their_requests_alone() -> Result<()> {
    let cluster = cluster()?;
    let megabyte = Bulk { up: 1 << 20, down: 1 << 20 };
    for to in ["192.168.50.12:30190", "[fd00:50::12]:30190"] {
        let answer = Open::new(&cluster, Client, to)?.send(megabyte)?;
        assert_eq!((answer.server.as_str(), answer.received), ("pod1-1", 1 << 20), "{to}");
    }
    Ok(())
}

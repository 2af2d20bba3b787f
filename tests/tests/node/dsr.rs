//! Direct server return: the backend's node answers the client.

use crate::world::{Open, answer, configured};
use anyhow::Result;
use serde_json::json;
use std::net::IpAddr;
use tests::{
    agent::{Agent, SocketLb},
    manifests,
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

#[test]
fn packets_that_come_by_an_overlay_enter_where_the_client_would() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["loadBalancer"] = json!({"mode": "dsr"});
    let mut cluster = Cluster::build(2, &shunt)?;
    for (node, other) in [(0, 1), (1, 0)] {
        let (own, peer) = (&cluster.nodes[node].host, &cluster.nodes[other].host);
        // As flannel does it; rp_filter is strict on every device of these nodes.
        own.netns.ip(&format!(
            "link add vx0 type vxlan id 9 local {} remote {} dstport 4789\n\
             address add 10.244.{}.0/32 dev vx0\naddress add fd00:244:{}::a/128 dev vx0 nodad\n\
             address add fe80::{}/64 dev vx0 nodad\nlink set vx0 up\n\
             route replace 10.244.{other}.0/24 via 10.244.{other}.0 dev vx0 onlink\n\
             route replace fd00:244:{other}::/64 via fe80::{other} dev vx0",
            own.v4,
            peer.v4,
            node + 1,
            node + 1,
            node + 1,
            other = other + 1,
        ))?;
    }
    cluster.start(&manifests::two_nodes()?)?;
    for to in ["192.168.50.12:30190", "[fd00:50::12]:30190"] {
        let client: [IpAddr; 2] = [cluster.client.v4.into(), cluster.client.v6.into()];
        let answer = answer(&cluster, Client, Proto::Tcp, to)?;
        assert!(client.contains(&answer.saw.ip()), "{answer}");
    }
    let received = cluster.nodes[0].host.netns.output("ip", &["-stats", "link", "show", "vx0"])?;
    let packets = received.lines().skip_while(|line| !line.contains("RX:")).nth(1).unwrap_or_default();
    let packets: u64 = packets.split_whitespace().nth(1).unwrap_or_default().parse()?;
    assert!(packets >= 6, "requests did not come by the overlay: {received}");
    Ok(())
}

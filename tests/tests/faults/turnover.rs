//! Connections come and go by few ports, in a small table.

use crate::world::{VICTIM, configured, lossless, paths};
use anyhow::Result;
use serde_json::json;
use tests::{
    agent::{Agent, SocketLb},
    load::{Kind, Load, Path},
    topology::cluster::Origin::{Client, Node, Pod},
};

/// One port leads to several frontends of a backend, and a second later to the same one again.
const FEW_PORTS: [(&str, &str); 2] =
    [("ipv4/ip_local_port_range", "40000 40127"), ("ipv4/tcp_tw_reuse", "1")];

/// As many as end before the first of them are forgotten, several times.
const CONNECTIONS: u64 = 400;

#[test]
fn connections_that_are_forgotten_take_no_others_with_them() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["maps"]["conntrack"] = json!(4096);
    shunt["snatPortRange"] = json!("20000-20127");
    let cluster = configured(&shunt)?;
    for origin in [Pod(VICTIM, 1), Node(VICTIM), Client] {
        cluster.host(origin).0.netns.sysctl(&FEW_PORTS)?;
    }
    let mut paths = paths()?;
    paths.extend([
        Path::tcp(Pod(VICTIM, 1), "10.96.0.10:90")?,
        Path::tcp(Pod(VICTIM, 1), "192.168.50.12:30190")?,
        Path::tcp(Client, "192.168.50.12:30090")?,
        Path::tcp(Client, "192.168.50.12:30190")?,
        Path::tcp(Node(VICTIM), "10.96.0.10:90")?,
    ]);
    let load = Load::start(&cluster, &paths)?;
    load.wait_until("they end", |kind, counts| kind != Kind::Connections || counts.ok > CONNECTIONS)?;
    lossless(load, "connections by few ports").map(drop)
}

//! Floods from forged addresses: connections that are established go on, and others are opened meanwhile.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use etherparse::PacketBuilder;
use proxy_common::{
    addr::{Ip4, Ip6},
    maps::transient::Queue,
};
use proxy_userspace::kernel::{PinnedMaps, Pins};
use tests::{
    agent::{Agent, SocketLb},
    probe::{Bulk, Proto},
    topology::cluster::{Cluster, Origin::Client},
};

use crate::{
    raw::{raw, send},
    world::{Open, answer, configured},
};

/// Where connections are masqueraded, to a backend on the other node or on this one.
const TO: [&str; 2] = ["192.168.50.12:30090", "[fd00:50::12]:30090"];
/// Rows of the table.
const ROWS: u32 = 16_384;
/// Packets of the flood between two honest clients.
const BURST: u32 = 500;
/// Some ten times as many packets as there are places for connections that open.
const BURSTS: u32 = 40;
/// Addresses that are forged: few, for the hosts' tables of neighbours are not what is tested.
const ADDRESSES: u32 = 50;

#[test]
fn connections_go_on_and_are_opened_during_a_flood_of_syns() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["maps"]["conntrack"] = ROWS.into();
    let cluster = configured(&shunt)?;
    // A backend with more half-open connections than it keeps answers all the same.
    for pod in cluster.nodes.iter().flat_map(|node| &node.pods) {
        pod.netns.sysctl(&[("ipv4/tcp_syncookies", "1")])?;
    }
    for to in TO {
        let kept: Vec<_> = (0..4).map(|n| Open::numbered(&cluster, Client, to, n)).collect::<Result<_>>()?;
        let address: SocketAddr = to.parse()?;
        let socket = raw(&cluster.host(Client).0.netns, address.ip())?;
        for burst in 0..BURSTS {
            let syns: Vec<_> = (0..BURST).map(|n| syn(burst * BURST + n, address)).collect();
            send(&socket, address, &syns)?;
            answer(&cluster, Client, Proto::Tcp, to)
                .with_context(|| format!("a client after burst {burst}"))?;
        }
        for open in &kept {
            open.outlives(Bulk::default())?;
        }
        let rows = rows(&cluster, address.ip())?;
        let places = Queue::Opening.places(ROWS) as usize;
        ensure!(rows > 2 * places, "{rows} rows: the flood has not come");
        // Connections that last and that have ended, and datagrams, have what is over.
        ensure!(rows < 4 * places + 1_000, "{rows} rows: there are {places} places");
    }
    Ok(())
}

/// Rows of the second node's connections, of the address's family.
fn rows(cluster: &Cluster, family_of: IpAddr) -> Result<usize> {
    let maps = PinnedMaps::open(Pins::new(cluster.nodes[1].agent.pins()))?;
    Ok(if family_of.is_ipv4() { maps.conntrack::<Ip4>()?.len() } else { maps.conntrack::<Ip6>()?.len() })
}

/// The first packet of a connection that nobody goes on with.
fn syn(number: u32, to: SocketAddr) -> Vec<u8> {
    let host = 150 + (number % ADDRESSES) as u8;
    let ip = match to.ip() {
        IpAddr::V4(to) => PacketBuilder::ipv4([192, 168, 50, host], to.octets(), 64),
        IpAddr::V6(to) => {
            let from = Ipv6Addr::new(0xfd00, 0x50, 0, 0, 0, 0, 0xf, host.into());
            PacketBuilder::ipv6(from.octets(), to.octets(), 64)
        }
    };
    let packet = ip.tcp(1_024 + (number / ADDRESSES) as u16, to.port(), number, 64_000).syn();
    let mut bytes = Vec::new();
    packet.write(&mut bytes, &[]).expect("room in memory");
    bytes
}

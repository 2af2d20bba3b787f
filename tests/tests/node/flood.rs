//! Floods from forged addresses: connections that are established go on, and others are opened meanwhile.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use etherparse::PacketBuilder;
use nix::sys::signal::Signal;
use proxy_common::{
    addr::{Ip4, Ip6},
    maps::transient::Queue,
};
use proxy_userspace::kernel::{PinnedMaps, Pins};
use serde_json::json;
use tests::{
    agent::{Agent, SocketLb},
    late,
    load::{Load, Path},
    probe::{Bulk, Proto},
    topology::cluster::{
        Cluster, Node,
        Origin::{Client, Pod},
    },
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
/// Of a flood that lasts, SYNs at a time and how long after them the next ones come.
const STEADY: (u32, Duration) = (50, Duration::from_millis(10));

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
        let (rows, places) = (flooded_rows(&cluster, address)?, Queue::Opening.places(ROWS) as usize);
        // Connections that last and that have ended, and datagrams, have what is over.
        ensure!(rows < 4 * places + 1_000, "{rows} rows: there are {places} places");
    }
    Ok(())
}

/// The agent ends, by a supervisor and by a crash, comes back, and hands its connections over to maps of another size.
#[test]
fn restarts_during_a_flood_lose_nothing() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["maps"]["conntrack"] = ROWS.into();
    let mut cluster = configured(&shunt)?;
    shunt["maps"]["conntrack"] = (2 * ROWS).into();
    let mut load = Load::start(
        &cluster,
        &[
            Path::tcp(Client, "192.168.50.12:30190")?,
            Path::udp(Client, "192.168.50.12:30153")?,
            Path::tcp(Client, "[fd00:50::12]:30190")?,
            Path::tcp(Pod(1, 0), "10.96.0.20:90")?,
        ],
    )?;
    // To other ports of the same backends: connections to the same ones would meet their own half-open ones there.
    let floods = ["192.168.50.12:30180", "[fd00:50::12]:30180"]
        .iter()
        .map(|to| Flood::start(&cluster, to.parse()?))
        .collect::<Result<Vec<_>>>()?;
    let flooded = |load: &mut Load, what: &str| {
        floods.iter().try_for_each(Flood::goes_on)?;
        load.checkpoint(what)
    };
    flooded(&mut load, "the flood alone")?;
    floods.iter().try_for_each(|flood| flooded_rows(&cluster, flood.to).map(drop))?;
    for (how, signal) in
        [("stopped", Signal::SIGTERM), ("killed", Signal::SIGKILL), ("resized", Signal::SIGTERM)]
    {
        let Node { host, agent, .. } = &mut cluster.nodes[1];
        if how == "resized" {
            agent.configure(&json!({}), &shunt)?;
        }
        agent.kill(signal)?;
        flooded(&mut load, how)?;
        agent.start(&host.netns)?;
        agent.wait_in_sync()?;
        flooded(&mut load, &format!("{how} and started"))?;
    }
    floods.into_iter().try_for_each(Flood::end)?;
    let report = load.finish()?;
    let Node { host, agent, .. } = &cluster.nodes[1];
    let refused = agent.shunt(&host.netns, &["drop", "list"])?;
    println!("restarts during a flood:\n{report}\n{refused}");
    report.ensure_lossless().context(refused)
}

/// SYNs at a steady rate, in a thread of its own.
struct Flood {
    to: SocketAddr,
    sent: Arc<AtomicU32>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Flood {
    /// From the client outside.
    fn start(cluster: &Cluster, to: SocketAddr) -> Result<Self> {
        let socket = raw(&cluster.host(Client).0.netns, to.ip())?;
        let (count, pause) = STEADY;
        let (sent, is_over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let (sent, is_over) = (sent.clone(), is_over.clone());
            move || {
                while !is_over.load(Relaxed) {
                    let first = sent.load(Relaxed);
                    send(&socket, to, &(first..first + count).map(|n| syn(n, to)).collect::<Vec<_>>())?;
                    sent.store(first + count, Relaxed);
                    thread::sleep(pause);
                }
                Ok(())
            }
        });
        Ok(Self { to, sent, is_over, thread })
    }

    /// Waits until there have been more SYNs than places for connections that open.
    fn goes_on(&self) -> Result<()> {
        let wanted = self.sent.load(Relaxed) + 2 * Queue::Opening.places(ROWS);
        late::soon(|| match self.sent.load(Relaxed) {
            sent if sent >= wanted => Ok(()),
            sent => bail!("the flood has come to {sent} SYNs of {wanted}"),
        })
    }

    fn end(self) -> Result<()> {
        self.is_over.store(true, Relaxed);
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Rows of the second node's connections, of the address's family, when a flood to it has come.
fn flooded_rows(cluster: &Cluster, to: SocketAddr) -> Result<usize> {
    let maps = PinnedMaps::open(Pins::new(cluster.nodes[1].agent.pins()))?;
    let rows = if to.is_ipv4() { maps.conntrack::<Ip4>()?.len() } else { maps.conntrack::<Ip6>()?.len() };
    // A masqueraded connection has four.
    ensure!(rows > 2 * Queue::Opening.places(ROWS) as usize, "{rows} rows: the flood has not come");
    Ok(rows)
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

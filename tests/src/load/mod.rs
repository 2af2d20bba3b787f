//! Traffic that counts what becomes of it: long streams, short connections and datagrams on
//! any number of paths, while a test stops, kills and replaces agents.
//!
//! # What proves a loss
//!
//! A machine with too little CPU is late, but loses nothing, so no verdict depends on time:
//!
//! - A **connection** that is refused, reset, or has no answer in [`PATIENCE`] is a failure. So
//!   is a byte that differs from what was sent.
//! - A **datagram** has a number that its answer repeats. It is lost when the answer has not
//!   come in [`PATIENCE`]. The sockets' buffers hold more than is sent in that time.
//! - A **TCP segment** that was dropped is sent again, which nobody would notice otherwise. What
//!   is sent again only because the acknowledgement was late arrives twice, and then the receiver
//!   says so (DSACK, RFC 2883). So segments lost = sent again − reported as duplicates; of a
//!   stream its client and its server both count. A SYN has no such report, but is answered by
//!   the kernel at once, whatever its processes do, and is sent again after a second at the
//!   earliest: all of those count as lost.
//!
//! The machine's own queues between two devices can overflow, too. [`Report`] says how much
//! they dropped.

mod counts;
mod report;

pub use counts::{Counts, Ending, Kind};
pub use report::{Line, Report};

use crate::{
    cgroup::Cgroup,
    late,
    lossless::counts_losses,
    netns::Namespace,
    probe::{Proto, Traffic, Worker},
    topology::cluster::{Cluster, Origin},
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

/// What has not come by then does not come.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long [`Load::settle`] waits.
const SETTLED: Duration = Duration::from_secs(60);

/// From where to where. The server is one of the harness's own: [`Proto::Tcp`] or [`Proto::Udp`].
#[derive(Clone, Debug)]
pub struct Path {
    /// Client.
    pub from: Origin,
    /// Protocol.
    pub proto: Proto,
    /// A frontend, usually.
    pub to: SocketAddr,
}

impl Path {
    /// A stream and short connections to a [`Proto::Tcp`] server.
    pub fn tcp(from: Origin, to: &str) -> Result<Self> {
        Ok(Self { from, proto: Proto::Tcp, to: to.parse().context(to.to_owned())? })
    }

    /// Datagrams and queries to a [`Proto::Udp`] server.
    pub fn udp(from: Origin, to: &str) -> Result<Self> {
        Ok(Self { from, proto: Proto::Udp, to: to.parse().context(to.to_owned())? })
    }
}

/// The client's end of a path on any topology.
#[derive(Clone, Debug)]
pub struct Client<'a> {
    /// How the report calls it.
    pub name: String,
    /// Where its sockets are.
    pub netns: &'a Namespace,
    /// The cgroup whose socket programs serve it.
    pub cgroup: Option<&'a Cgroup>,
    /// Protocol.
    pub proto: Proto,
    /// Destination.
    pub to: SocketAddr,
}

/// Running traffic. It ends with this value. The clients are processes of its own, so the cluster
/// stays free to be changed.
#[derive(Debug)]
pub struct Load {
    workers: Vec<(Option<PathBuf>, Worker)>,
    flows: Vec<Flow>,
    start: Instant,
    windows: Vec<(String, Duration, Vec<Counts>)>,
    queues_dropped: u64,
}

/// One kind of traffic of one path.
#[derive(Debug)]
struct Flow {
    name: String,
    kind: Kind,
    worker: usize,
    place: usize,
}

impl Load {
    /// Starts traffic on paths of a cluster, and waits until all of it flows.
    pub fn start(cluster: &Cluster, paths: &[Path]) -> Result<Self> {
        let clients = paths.iter().map(|path| {
            let cgroup = match path.from {
                Origin::Pod(node, _) | Origin::Node(node) => Some(&cluster.nodes[node].agent.cgroup),
                Origin::Client => None,
            };
            let host = cluster.host(path.from).0;
            let name = format!("{} → {} {}", host.name, path.to, path.proto);
            Client { name, netns: &host.netns, cgroup, proto: path.proto, to: path.to }
        });
        Self::start_clients(&clients.collect::<Vec<_>>())
    }

    /// Starts traffic on any topology, and waits until all of it flows.
    pub fn start_clients(clients: &[Client<'_>]) -> Result<Self> {
        counts_losses();
        let mut load = Self {
            workers: Vec::new(),
            flows: Vec::new(),
            start: Instant::now(),
            windows: Vec::new(),
            queues_dropped: queues_dropped()?,
        };
        for client in clients {
            load.add(client)?;
        }
        load.checkpoint("before")?;
        Ok(load)
    }

    fn add(&mut self, client: &Client<'_>) -> Result<()> {
        let kinds = match client.proto {
            Proto::Tcp => [Kind::Stream, Kind::Connections],
            Proto::Udp => [Kind::Datagrams, Kind::Queries],
            other => bail!("{}: no load for {other}", client.name),
        };
        let worker = self.worker(client.cgroup)?;
        for kind in kinds {
            let place = self.flows.iter().filter(|flow| flow.worker == worker).count();
            let traffic = Traffic { netns: client.netns.path(), kind, to: client.to };
            self.workers[worker].1.load(&traffic)?;
            self.flows.push(Flow { name: client.name.clone(), kind, worker, place });
        }
        Ok(())
    }

    fn worker(&mut self, cgroup: Option<&Cgroup>) -> Result<usize> {
        let path = cgroup.map(|cgroup| cgroup.path().to_owned());
        if let Some(place) = self.workers.iter().position(|(other, _)| *other == path) {
            return Ok(place);
        }
        self.workers.push((path, Worker::start(cgroup)?));
        Ok(self.workers.len() - 1)
    }

    /// Counts of every flow so far.
    pub fn counts(&self) -> Result<Vec<Counts>> {
        self.gather(Worker::load_counts)
    }

    /// Ends a window of the report when every flow has gone on: what was counted since the last
    /// one goes under this name.
    pub fn checkpoint(&mut self, name: &str) -> Result<()> {
        self.settle(3)?;
        let counts = self.counts()?;
        self.windows.push((name.into(), self.start.elapsed(), counts));
        Ok(())
    }

    /// Waits until every flow has made `successes` attempts that began and ended well from now
    /// on; says which has not. It is only late if none of its attempts failed.
    pub fn settle(&self, successes: u64) -> Result<()> {
        let before = self.counts()?;
        late::until(SETTLED, || {
            let now = self.counts()?;
            // One may have begun before.
            let wanted = successes + 1;
            let behind = before.iter().zip(&now).position(|(before, now)| now.ok < before.ok + wanted);
            let Some(behind) = behind else { return Ok(()) };
            let (flow, counts) = (&self.flows[behind], now[behind].since(&before[behind]));
            let text = format!("{} {}: {counts} in {SETTLED:?}: {:?}", flow.name, flow.kind, counts.told);
            ensure!(counts.is_lossless(), text);
            bail!(late!("{text}"))
        })
    }

    /// Waits until what was counted of every flow is as wanted; `what` says how that is.
    pub fn wait_until(&self, what: &str, is_wanted: impl Fn(Kind, &Counts) -> bool) -> Result<()> {
        late::poll(SETTLED, || {
            let counts = self.counts()?;
            let others = self.flows.iter().zip(&counts).find(|(flow, counts)| !is_wanted(flow.kind, counts));
            let Some((flow, counts)) = others else { return Ok(()) };
            bail!(late!("{what}: not {} {}: {counts} in {SETTLED:?}", flow.name, flow.kind))
        })
    }

    /// Ends the traffic, after the answers that are still on their way. The last window is what
    /// came after the last checkpoint.
    pub fn finish(mut self) -> Result<Report> {
        // A flow that does not go on is seen in the report.
        let _ = self.settle(1);
        let counts = self.gather(Worker::end_load)?;
        self.windows.push(("the end".into(), self.start.elapsed(), counts));
        let lines = self.flows.iter().enumerate().map(|(place, flow)| {
            let windows = self.windows.iter().map(|(_, _, counts)| &counts[place]);
            Line::new(&flow.name, flow.kind, windows)
        });
        Ok(Report {
            lines: lines.collect(),
            windows: self.windows.iter().map(|(name, end, _)| (name.clone(), *end)).collect(),
            queues_dropped: queues_dropped()?.saturating_sub(self.queues_dropped),
        })
    }

    fn gather(&self, ask: impl Fn(&Worker) -> Result<Vec<Counts>>) -> Result<Vec<Counts>> {
        let all = self.workers.iter().map(|(_, worker)| ask(worker)).collect::<Result<Vec<_>>>()?;
        let of = |flow: &Flow| all[flow.worker].get(flow.place).cloned().context("a flow has no counts");
        self.flows.iter().map(of).collect()
    }
}

/// Packets that the machine's queues between drivers and protocols had no room for.
fn queues_dropped() -> Result<u64> {
    let text = fs::read_to_string("/proc/net/softnet_stat").context("read /proc/net/softnet_stat")?;
    let dropped = |line: &str| {
        let field = line.split_whitespace().nth(1)?;
        u64::from_str_radix(field, 16).ok()
    };
    Ok(text.lines().filter_map(dropped).sum())
}

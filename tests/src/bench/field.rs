//! One contender's network.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{
    contender::Contender,
    ends::{Drive, Driven, Ends, Serve, Workload},
    target::{self, Path},
};
use crate::{
    control_plane::{SharedControlPlane, Shown},
    kube_proxy::KubeProxy,
    topology::cluster::{Cluster, Origin, PodLinks},
};

/// Between two looks at whether a contender delivers.
const PAUSE: Duration = Duration::from_millis(20);

/// A contender that was not measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Missing {
    /// Who.
    pub contender: Contender,
    /// Why.
    pub why: String,
}

/// What the networks of a measurement have in common.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Where clients and servers run.
    pub cpus: &'a [usize],
    /// From which proxies learn of Services.
    pub api: &'a Arc<SharedControlPlane>,
    /// Whether servers have many connections at once. It costs more for each.
    pub at_once: bool,
}

/// Two nodes, their pods and an outside client, with a proxy on the first node.
#[derive(Debug)]
pub struct Field {
    contender: Contender,
    // Processes go before the namespaces they live in.
    /// In the cgroup of each node, and in none.
    nodes: Vec<Ends>,
    outside: Ends,
    kube_proxy: Option<KubeProxy>,
    _shown: Vec<Shown>,
    cluster: Cluster,
    started: Instant,
}

impl Field {
    /// Builds a network for each contender. Who does not deliver on all of its paths is missing.
    pub fn build_all(
        contenders: &[Contender],
        surroundings: Surroundings<'_>,
        (paths, workloads): (&[Path], &[Workload]),
        patience: Duration,
    ) -> Result<(Vec<Self>, Vec<Missing>)> {
        let (mut fields, mut missing) = (Vec::new(), Vec::new());
        for contender in contenders.iter().copied() {
            let mut field = Self::build(contender, surroundings)?;
            match field.wait(paths, workloads, patience)? {
                Ok(time) => {
                    println!("{} delivers after {:.1} s", contender.name(), time.as_secs_f64());
                    fields.push(field);
                }
                Err(why) => {
                    println!("{}: {why}", contender.name());
                    missing.push(Missing { contender, why });
                }
            }
        }
        Ok((fields, missing))
    }

    /// Builds the network and starts the contender.
    fn build(contender: Contender, surroundings: Surroundings<'_>) -> Result<Self> {
        let Surroundings { cpus, api, at_once } = surroundings;
        let mut cluster = Cluster::build_with(2, &contender.settings(), PodLinks::Routed)?;
        if contender.uses_drivers() {
            cluster.wire()?;
        }
        target::add_client_addresses(&cluster)?;
        if contender == Contender::Direct {
            target::route_through_first_node(&cluster)?;
        }
        for host in [&cluster.client, &cluster.nodes[0].pods[1]] {
            host.netns.sysctl(&[
                ("ipv4/ip_local_port_range", "1024 65535"),
                ("ipv4/tcp_tw_reuse", "1"),
                ("ipv4/tcp_syn_retries", "1"),
            ])?;
        }
        // Its lower ports are for masquerading.
        cluster.nodes[0].host.netns.sysctl(&[("ipv4/tcp_syn_retries", "1")])?;
        let mut nodes = Vec::new();
        for (node, addresses) in cluster.nodes.iter().zip(target::add_addresses(&cluster)?) {
            let mut ends = Ends::start(cpus, Some(&node.agent.cgroup))?;
            let netns = node.pods[0].netns.path();
            ends.serve(Serve { netns, addresses, ports: target::pod_ports(), at_once })?;
            nodes.push(ends);
        }
        let shown = cluster.nodes.iter().map(|node| api.show_in(&node.host.netns, true));
        let shown = shown.collect::<Result<Vec<Shown>>>()?;
        let started = Instant::now();
        let kubeconfig = shown[0].kubeconfig();
        let kube_proxy = contender.start(&mut cluster, &kubeconfig)?;
        Ok(Self {
            contender,
            nodes,
            outside: Ends::start(cpus, None)?,
            kube_proxy,
            _shown: shown,
            cluster,
            started,
        })
    }

    /// Whose it is.
    pub fn contender(&self) -> Contender {
        self.contender
    }

    /// Its machines and containers.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The processes that are measured.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().chain([&self.outside]).map(Ends::id)
    }

    /// The proxy's process on the first node.
    pub fn proxy(&self) -> Result<Option<u32>> {
        match &self.kube_proxy {
            Some(kube_proxy) => Ok(Some(kube_proxy.id())),
            None if self.contender.is_shunt() => self.cluster.nodes[0].agent.process_id().map(Some),
            None => Ok(None),
        }
    }

    /// Waits until every path works, and says how long that took since the contender was started;
    /// or why it does not.
    fn wait(
        &mut self,
        paths: &[Path],
        workloads: &[Workload],
        patience: Duration,
    ) -> Result<Result<Duration, String>> {
        let (deadline, contender) = (self.started + patience, self.contender);
        // A client whose SYN has waited for shunt gets through as a client by packets, and pays a little more for each
        // later connection that socket LB translates.
        while contender.is_shunt() && !self.cluster.nodes[0].agent.is_in_sync() {
            if Instant::now() > deadline {
                return Ok(Err(self.complaint("nothing is served", patience)));
            }
            thread::sleep(PAUSE);
        }
        for path in paths.iter().filter(|path| path.concerns(contender)) {
            for workload in workloads {
                while self.drive(*path, *workload, 0.001, Some(1))?.units == 0.0 {
                    if Instant::now() > deadline {
                        return Ok(Err(self.complaint(&format!("{} is not served", path.name()), patience)));
                    }
                    thread::sleep(PAUSE);
                }
            }
        }
        Ok(Ok(self.started.elapsed()))
    }

    fn complaint(&self, what: &str, patience: Duration) -> String {
        let words = match &self.kube_proxy {
            Some(kube_proxy) => kube_proxy.last_words(),
            None => self.cluster.nodes[0].agent.last_words(),
        };
        eprintln!("{words}");
        format!("{what} after {} s", patience.as_secs())
    }

    /// What shunt has dropped on the first node since it was started, by reason.
    pub fn drops(&self) -> Result<Option<BTreeMap<String, u64>>> {
        #[derive(Deserialize)]
        struct Row {
            reason: String,
            count: u64,
        }
        if !self.contender.is_shunt() {
            return Ok(None);
        }
        let node = &self.cluster.nodes[0];
        let list = node.agent.shunt(&node.host.netns, &["drop", "list", "-o", "json"])?;
        let rows: Vec<Row> = serde_json::from_str(&list).context("read the list of drops")?;
        Ok(Some(rows.into_iter().map(|row| (row.reason, row.count)).collect()))
    }

    /// Sends requests on one path.
    pub fn drive(
        &mut self,
        path: Path,
        workload: Workload,
        seconds: f64,
        limit: Option<u64>,
    ) -> Result<Driven> {
        let origin = path.origin();
        let netns = self.cluster.host(origin).0.netns.path();
        let from = path.sources(&self.cluster);
        let to = path.destinations(self.contender, workload, &self.cluster);
        let nanoseconds = (seconds * 1e9) as u64;
        let drive = Drive { netns, from, to, workload, nanoseconds, limit };
        match origin {
            Origin::Pod(node, _) | Origin::Node(node) => self.nodes[node].drive(drive),
            Origin::Client => self.outside.drive(drive),
        }
    }
}

//! What the agent would write for what the API server, or a directory of manifests, says now.
//! Made by the agent's own modules on a copy of the maps in memory; the kernel's are only read.

pub mod compare;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use clap::Args;

use crate::{
    agent,
    config::{Config, Logging, Overrides},
    dataplane::{MemoryMaps, Reconciler, Room},
    kernel::{self, Capacities, Netlink, PinnedMaps, Pins},
    logging,
    model::{Dirty, State},
    plan,
    tasks::Tasks,
    watch::{self, Batch, Batches, WatchMetrics, manifests},
};

/// Where the objects come from, and the agent's settings.
#[derive(Clone, Debug, Default, Args)]
pub struct SourceArgs {
    /// Read the objects from the YAML and JSON files of a directory.
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    pub manifests: Option<PathBuf>,
    /// Ask the API server this file names; without it, that of the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The agent's configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of this node in the cluster [default: the host name, lower-cased].
    #[arg(long, value_name = "NODE")]
    pub hostname_override: Option<String>,
    /// Directory of the pinned maps [default: that of the configuration].
    #[arg(long, value_name = "DIR")]
    pub bpffs: Option<PathBuf>,
    /// How long to wait for the first complete lists, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub timeout: u64,
}

/// What is wanted of the maps of a node.
pub struct Desired {
    /// The agent's configuration.
    pub config: Config,
    /// The node.
    pub node_name: Arc<str>,
    state: State,
    host: plan::Host,
    batches: Batches,
    metrics: Arc<WatchMetrics>,
    /// What hands on batches.
    _tasks: Tasks,
}

/// A copy of the maps on which everything has been written.
pub struct Written {
    /// The maps before.
    pub before: MemoryMaps,
    /// The maps after.
    pub after: MemoryMaps,
    /// Rows that it took.
    pub rows: usize,
    /// What could not be written, and why.
    pub failures: Vec<(String, String)>,
}

/// Takes in everything that exists.
async fn list(state: &mut State, batches: &mut Batches) -> Result<()> {
    loop {
        let batch = batches.recv().await.context("the source of objects ended")?;
        let listed = batch.initial;
        absorb(state, batch);
        if listed {
            return Ok(());
        }
    }
}

fn absorb(state: &mut State, batch: Batch) {
    // What the agent would leave as it is stays in the copy of the maps, too.
    state.set_unknown(batch.unknown);
    batch.changes.into_iter().for_each(|change| drop(state.apply(change)));
}

impl Desired {
    /// Waits for everything that exists.
    ///
    /// # Errors
    /// When the configuration is wrong, or the source does not answer in time.
    pub async fn gather(args: &SourceArgs) -> Result<Self> {
        let overrides = Overrides {
            hostname: args.hostname_override.clone(),
            kubeconfig: args.kubeconfig.clone(),
            bpffs: args.bpffs.clone(),
            ..Overrides::default()
        };
        let config = Config::load(args.config.as_deref(), overrides).context("configuration")?;
        // What is wrong with objects is told as the agent tells it; what it does is not.
        logging::init(&Logging { level: "warn".into(), ..config.logging.clone() })?;
        let node_name = agent::node_name(&config)?;
        let metrics = Arc::new(WatchMetrics::default());
        let mut tasks = Tasks::default();
        let mut batches = match &args.manifests {
            Some(folder) => manifests::start(folder.clone(), node_name.clone(), metrics.clone(), &mut tasks)?,
            None => watch::kube::start(
                &watch::kube::connect(
                    config.kubeconfig.clone(),
                    config.master.as_deref(),
                    config.api_servers.clone(),
                )
                .await?,
                &node_name,
                metrics.clone(),
                &mut tasks,
            ),
        };
        let mut state = State::new(node_name.clone());
        let listed = tokio::time::timeout(Duration::from_secs(args.timeout), list(&mut state, &mut batches));
        let listed = listed.await.map_err(|_| {
            anyhow!(
                "no complete list of objects within {} s ({} errors)",
                args.timeout,
                metrics.watch_errors()
            )
        })?;
        listed?;
        let host = plan::Host {
            netns_cookie: kernel::netns_cookie()?,
            addresses: Netlink::connect()?.host().await?.owned().into_iter().collect(),
            ..plan::Host::default()
        };
        Ok(Self { config, node_name, state, host, batches, metrics, _tasks: tasks })
    }

    /// Takes in what has changed since.
    pub fn catch_up(&mut self) {
        while let Ok(batch) = self.batches.try_recv() {
            absorb(&mut self.state, batch);
        }
    }

    /// True if this host is the node, as far as its addresses tell.
    pub fn is_here(&self) -> bool {
        let node = self.state.node().map_or(&[][..], |node| &node.addresses);
        node.is_empty() || node.iter().any(|address| self.host.addresses.contains(address))
    }

    /// Takes the Node's word for the addresses of a host that this is not.
    pub fn assume_addresses_of_the_node(&mut self) {
        self.host.addresses = self.state.node().map_or_else(Vec::new, |node| node.addresses.to_vec());
    }

    /// Number of Services that are served.
    pub fn services(&self) -> usize {
        self.state.services().count()
    }

    /// Objects that were refused, files that could not be read.
    pub fn refused(&self) -> (u64, u64) {
        (self.metrics.rejected_total(), self.metrics.files_failed())
    }

    /// Whether the Node object exists.
    pub fn knows_node(&self) -> bool {
        self.state.node().is_some()
    }

    /// Writes everything to a copy of `before`, as an agent does that starts.
    ///
    /// # Errors
    /// When the copy cannot be adopted.
    pub fn write(&self, before: MemoryMaps) -> Result<Written> {
        let mut after = before.clone();
        after.widen(self.room(before.room()));
        let mut reconciler = Reconciler::adopt(&mut after).context("cannot make sense of the maps")?;
        let Dirty { services, .. } = self.state.everything();
        reconciler.set_node(plan::node(&self.state, &self.config.model, &self.host));
        for service in services {
            let plans = plan::build(&self.state, &service, &self.config.model);
            reconciler.update(service, plans);
        }
        reconciler.prune();
        let rows = reconciler.apply(&mut after).rows;
        let node = reconciler.common_failures().map(|error| (compare::NODE.to_owned(), error.to_string()));
        let waiting = reconciler.pending().map(|(service, error)| {
            (service.to_string(), error.map_or_else(|| "waits for others".to_owned(), ToString::to_string))
        });
        let refused = reconciler.refused().map(|(service, error)| (service.to_string(), error.to_string()));
        let failures = node.chain(waiting).chain(refused).collect();
        Ok(Written { before, after, rows, failures })
    }

    /// Where the maps are.
    pub fn bpffs(&self) -> &Path {
        &self.config.bpffs
    }

    /// The maps as they are; nothing if there are none.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn live(&self) -> Result<Option<MemoryMaps>> {
        let Ok(maps) = PinnedMaps::open(Pins::new(self.bpffs())) else { return Ok(None) };
        Ok(Some(maps.copy()?))
    }

    /// Empty maps of the configured size.
    pub fn empty(&self) -> MemoryMaps {
        MemoryMaps::with_room(room(&self.config.maps))
    }

    /// The room that an agent gives maps which have as much as `present`.
    fn room(&self, present: Room) -> Room {
        let Room { services, frontends, backends, slots, source_ranges } = present;
        let configured = self.config.maps;
        let present = Capacities { services, frontends, backends, slots, source_ranges, ..configured };
        let needs = plan::needs(&self.state, &self.config.model);
        let most = configured.most(configured.conntrack);
        room(&agent::fitting(&needs, present, &most).unwrap_or(present))
    }
}

fn room(capacities: &Capacities) -> Room {
    let Capacities { services, frontends, backends, slots, source_ranges, .. } = *capacities;
    Room { services, frontends, backends, slots, source_ranges }
}

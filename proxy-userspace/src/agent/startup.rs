//! What happens once: the name of the node, the source of its objects, the datapath.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use aya_log::EbpfLogger;
use bytesize::ByteSize;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use procfs::{Current as _, Meminfo};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::JoinHandle,
};
use tracing::{info, warn};

use super::AgentMetrics;
use crate::{
    config::{Attach, Config, Current, Logging, Xdp, level_of_verbosity},
    health::Health,
    kernel::{Capacities, Datapath, DropMetrics, HostPorts, Options, Pins, RouteWatch, TcMode, XdpPolicy},
    logging,
    metrics::{Checks, Debug, Metrics, MetricsServer, Pages},
    model::{DetectLocal, Mode},
    tasks::Tasks,
    watch::{
        Batches, WatchMetrics,
        kube::{self, Events, NodeTaint},
        manifests,
    },
};

/// Takes as many descriptors as the system grants: each health port is one, and so is each
/// connection to it, and many systems start a process with few.
pub(super) fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        warn!(%error, "cannot raise the limit of open files");
    }
}

/// Name of this node: as configured, else the host's, which kubelet lower-cases.
///
/// # Errors
/// When neither is there.
pub fn node_name(config: &Config) -> Result<Arc<str>> {
    if let Some(name) = &config.node_name {
        return Ok(name.trim().to_lowercase().into());
    }
    let host = nix::unistd::gethostname().context("cannot read the host name")?;
    match host.to_str().map(str::trim) {
        Some(name) if !name.is_empty() => Ok(name.to_lowercase().into()),
        _ => bail!("the host has no usable name; give the node's with --hostname-override"),
    }
}

/// Starts reading objects: from a folder if one is given, else from an API server, which
/// also takes events and lets a taint be removed.
pub(super) async fn source(
    config: &Config,
    folder: Option<PathBuf>,
    node_name: &Arc<str>,
    metrics: Arc<WatchMetrics>,
    tasks: &mut Tasks,
) -> Result<(Batches, Option<Events>, Option<NodeTaint>)> {
    if let Some(folder) = folder {
        info!(folder = %folder.display(), node = &**node_name, "reading manifests");
        if let Some(taint) = &config.node_taint {
            warn!(%taint, "nodeTaint has no effect without an API server");
        }
        return Ok((manifests::start(folder, node_name.clone(), metrics, tasks)?, None, None));
    }
    let (kubeconfig, further) = (config.kubeconfig.clone(), config.api_servers.clone());
    let client = kube::connect(kubeconfig, config.master.as_deref(), further).await?;
    info!(node = &**node_name, "watching the API server");
    let events = Events::start(&client, node_name, tasks);
    let taint = config.node_taint.clone();
    let taint = taint.map(|taint| NodeTaint::start(&client, node_name, taint, tasks));
    Ok((kube::start(&client, node_name, metrics, tasks), Some(events), taint))
}

/// A change may wait for two sync periods before it counts as late, as in kube-proxy.
const LATE_AFTER_SYNC_PERIODS: u32 = 2;

/// How long a change may wait.
pub(super) fn patience(config: &Config) -> Duration {
    config.sync_period * LATE_AFTER_SYNC_PERIODS
}

/// Serves the health of the agent from its first moment on.
pub(super) fn health(config: &Config, checks: Checks) -> Result<Health> {
    let mut health = Health::new(patience(config), checks);
    if let Some(address) = config.health {
        let served = health.serve(address, config.bind_hard_fail);
        served.with_context(|| format!("cannot serve health on {address}"))?;
    }
    Ok(health)
}

/// Where what is told over HTTP comes from.
pub(super) struct Told<'a> {
    pub(super) checks: &'a Checks,
    pub(super) health: &'a Health,
    pub(super) watch: &'a WatchMetrics,
    pub(super) agent: &'a Arc<AgentMetrics>,
    pub(super) config: &'a Current,
}

/// Serves what the modules count, once the maps are there.
pub(super) fn metrics(config: &Config, told: Told<'_>) -> Result<Option<MetricsServer>> {
    let Some(address) = config.metrics else { return Ok(None) };
    let mut metrics = Metrics::new(told.checks.clone());
    let registry = metrics.registry();
    told.health.register(registry);
    told.watch.register(registry);
    told.agent.register(registry);
    registry.register_collector(Box::new(DropMetrics::new(Pins::new(&config.bpffs))));
    let pages = pages(told.config, config.profiling);
    let served = metrics.serve(address, config.bind_hard_fail, pages);
    served.map(Some).with_context(|| format!("cannot serve metrics on {address}"))
}

/// What is served beside the metrics. The configuration is told as it is when somebody asks.
fn pages(config: &Current, profiling: bool) -> Pages {
    let (shown, changed) = (config.clone(), config.clone());
    let set_verbosity = move |text: &str| {
        let verbosity = text.trim().parse().map_err(|_| "a verbosity is a number, 0 or more".to_owned())?;
        let level = level_of_verbosity(verbosity).to_owned();
        let logging = Logging { level, ..changed.get().logging.clone() };
        logging::set_level(&logging).map_err(|error| format!("{error:#}"))
    };
    Pages {
        configz: Arc::new(move || shown.get().configz().to_string()),
        debug: profiling.then(|| Debug { set_verbosity: Arc::new(set_verbosity) }),
    }
}

/// How large maps are.
pub(super) struct Sizes {
    /// Rows that they begin with.
    pub(super) begin: Capacities,
    /// Rows to which they grow.
    pub(super) most: Capacities,
    /// Bytes that `conntrack` may take.
    pub(super) conntrack_bytes: u64,
}

/// What the configuration says, on this machine.
///
/// # Errors
/// When the machine does not say how much memory it has.
pub(super) fn sizes(config: &Config) -> Result<Sizes> {
    let machine = Meminfo::current().context("cannot read how much memory the machine has")?.mem_total;
    let (limit, rows) = (config.conntrack_memory, config.conntrack_memory.conntrack_rows(machine));
    let begin = Capacities { conntrack: config.maps.conntrack.min(rows), ..config.maps }.on_this_machine();
    let conntrack_bytes = limit.bytes(machine);
    info!(
        begin = begin.conntrack,
        most = rows,
        memory = %ByteSize(conntrack_bytes),
        "rows of conntrack for each family (maps.conntrack, maps.conntrackMemory)"
    );
    if begin.conntrack < config.maps.conntrack {
        warn!(
            configured = config.maps.conntrack,
            begin = begin.conntrack,
            "maps.conntrackMemory ({limit}) has no room for maps.conntrack; the limit counts"
        );
    }
    Ok(Sizes { begin, most: begin.most(rows), conntrack_bytes })
}

/// Loads the programs, with the maps an earlier agent left.
pub(super) fn datapath(config: &Config, capacities: Capacities) -> Result<(Datapath, Logs)> {
    let options = Options {
        bpffs: config.bpffs.clone(),
        cgroup: config.cgroup.clone(),
        capacities,
        tc_mode: match config.attach {
            Attach::Auto => TcMode::Auto,
            Attach::Tcx => TcMode::Tcx,
            Attach::Clsact => TcMode::Clsact,
        },
        xdp: match config.xdp {
            Xdp::Off => XdpPolicy::Off,
            Xdp::Auto => XdpPolicy::Auto,
            Xdp::Native => XdpPolicy::Native,
            Xdp::Generic => XdpPolicy::Generic,
        },
        log_level: config.logging.datapath_level.number(),
    };
    let mut datapath = Datapath::open(options).context("cannot set up the datapath")?;
    let logs = Logs::follow(&mut datapath);
    Ok((datapath, logs))
}

/// Keeps good what programs in drivers remember of next hops, where there are any.
///
/// # Errors
/// When changes of routes cannot be watched.
pub(super) fn watch_routes(datapath: &Datapath, tasks: &mut Tasks) -> Result<Option<RouteWatch>> {
    if !datapath.has_driver() {
        return Ok(None);
    }
    RouteWatch::start(datapath, tasks).map(Some).context("cannot watch the host's routes")
}

/// Passes on what the programs log, for as long as it is held.
pub(super) struct Logs(Option<JoinHandle<()>>);

impl Logs {
    /// Those of these programs.
    pub(super) fn follow(datapath: &mut Datapath) -> Self {
        Self(datapath.logger().map(|logger| tokio::spawn(pass_on(logger))))
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

async fn pass_on(logger: EbpfLogger<&'static dyn log::Log>) {
    // SAFETY: the logger owns the descriptor of its ring buffer and keeps it open for as
    // long as it lives, which is as long as `AsyncFd` owns it.
    let registered = unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) };
    let mut logger = match registered {
        Ok(logger) => logger,
        Err(error) => return warn!(%error, "no logs from the datapath"),
    };
    loop {
        match logger.readable_mut().await {
            Ok(mut ready) => {
                ready.get_inner_mut().flush();
                ready.clear_ready();
            }
            Err(error) => return warn!(%error, "no more logs from the datapath"),
        }
    }
}

/// Says what of the configuration does not go together with this host.
pub(super) fn check_host(config: &Config) {
    let model = &config.model;
    if model.load_balancer.mode != Mode::Snat && model.detect_local == DetectLocal::Off {
        warn!("pods cannot be told from clients outside (detectLocalMode), so loadBalancer.mode stays snat");
    }
    let range = model.snat_port_first..=model.snat_port_last;
    match HostPorts::read().map(|ports| ports.shared_with(&range)) {
        Ok(None) => (),
        Ok(Some(shared)) => warn!(
            ports = format!("{}-{}", shared.start(), shared.end()),
            "sockets of this host are given ports of snatPortRange, too, and may lose replies to masqueraded \
             connections; reserve them in net.ipv4.ip_local_reserved_ports"
        ),
        Err(error) => warn!(%error, "cannot compare snatPortRange with the ports of this host"),
    }
}

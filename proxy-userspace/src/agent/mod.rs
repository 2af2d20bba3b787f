//! The agent: brings the modules together and runs until it is told to stop. The only
//! place that knows all of them.
//!
//! A restart is a normal day: adopt what is pinned, wait for all initial lists, write
//! what differs, remove what nobody wants any more, attach. Traffic flows by the last
//! good state all the while, and after the end.

mod attachments;
mod backoff;
mod due;
mod edges;
mod engine;
mod exempt;
mod growth;
mod handover;
mod metrics;
mod pressure;
mod process;
mod readiness;
mod refusals;
mod reload;
mod startup;
mod sweeper;
mod takeover;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::Instant,
};
use tracing::{debug, info, warn};

use self::{
    attachments::Attachments,
    backoff::Backoff,
    due::{BEAT, Due, FULL_SYNC_REST, REFUSED, REFUSED_WITH_ROOM, SWEEP, SWEEP_AFTER_WRITES, SWEEP_REST, at},
    edges::{Edges, follow_host},
    engine::{Engine, Synced},
    exempt::Exemptions,
    growth::Growth,
    pressure::{PressureWatch, Refused},
    readiness::Readiness,
    refusals::Refusals,
    reload::Reloads,
    startup::{Logs, Told},
    sweeper::{Step, Sweeper},
};
use crate::{
    clock::monotonic_nanos,
    config::{Config, Current},
    dataplane::{MapError, Reconciler, Survey, SweepError, Swept, Timeouts},
    health::Health,
    kernel::{self, Datapath, Host, KernelError, KernelMaps, Netlink, RouteWatch, Running},
    metrics::{Checks, MetricsServer},
    model::SocketLb,
    plan,
    tasks::Tasks,
    watch::{Batch, Batches, WatchMetrics},
};

pub(crate) use self::growth::fitting;
pub use self::{
    metrics::{AgentMetrics, reference},
    process::init,
    startup::node_name,
};

/// Runs the agent until SIGTERM or SIGINT. Objects come from `manifests` if given, else
/// from an API server.
pub async fn run(config: Config, manifests: Option<PathBuf>) -> Result<()> {
    let mut signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let [Ok(terminate), Ok(interrupt)] = &mut signals else { bail!("cannot listen for signals") };
    let mut agent = Agent::start(&config, manifests).await?;
    agent.run([terminate, interrupt]).await?;
    info!(
        pins = %config.bpffs.display(),
        "stopping; traffic goes on by what is pinned, which `shunt cleanup` removes"
    );
    Ok(())
}

struct Agent {
    /// In force now.
    config: Current,
    reloads: Reloads,
    checks: Checks,
    batches: Batches,
    watch_metrics: Arc<WatchMetrics>,
    metrics: Arc<AgentMetrics>,
    /// Serves for as long as it is held.
    _metrics_server: Option<MetricsServer>,
    hosts: watch::Receiver<Host>,
    datapath: Datapath,
    logs: Logs,
    route_watch: Option<RouteWatch>,
    maps: KernelMaps,
    sweeper: Sweeper,
    growth: Growth,
    /// Tells `shunt cleanup` and `shunt migrate` that an agent runs.
    _running: Running,
    pressure: PressureWatch,
    refusals: Refusals,
    edges: Edges,
    attachments: Attachments,
    engine: Engine,
    health: Health,
    readiness: Readiness,
    exemptions: Exemptions,
    socket_lb: SocketLb,
    timeouts: Timeouts,
    sync_period: Duration,
    min_sync_period: Duration,
    backoff: Backoff,
    due: Due,
    tasks: Tasks,
}

impl Agent {
    async fn start(config: &Config, manifests: Option<PathBuf>) -> Result<Self> {
        kernel::keep_heap_small();
        let node_name = startup::node_name(config)?;
        info!(version = env!("CARGO_PKG_VERSION"), node = &*node_name, "starting");
        process::tell(&config.notes);
        process::set_up(config);
        startup::check_host(config);
        startup::raise_descriptor_limit();
        let checks = Checks::default();
        let health = startup::health(config, checks.clone())?;
        let watch_metrics = Arc::new(WatchMetrics::default());
        let mut tasks = Tasks::default();
        let stands_alone = manifests.is_some();
        let (batches, events, taint) =
            startup::source(config, manifests, &node_name, watch_metrics.clone(), &mut tasks).await?;
        let sizes = startup::sizes(config)?;
        let (datapath, logs) = startup::datapath(config, sizes.begin)?;
        let mut maps = datapath.maps().context("cannot open the maps")?;
        let metrics = Arc::new(AgentMetrics::new(sizes.conntrack_bytes));
        metrics.config().started(&config.hash);
        let current = Current::new(config.clone());
        let told = Told {
            checks: &checks,
            health: &health,
            watch: &watch_metrics,
            agent: &metrics,
            config: &current,
        };
        let metrics_server = startup::metrics(config, told)?;
        let sweeper = Sweeper::of(&datapath)?;
        let reconciler = Reconciler::adopt(&mut maps).context("cannot read what an earlier agent left")?;
        let hosts = follow_host(Netlink::connect()?, &mut tasks).await?;
        let host = plan::Host {
            netns_cookie: datapath.netns_cookie()?,
            secret: secret()?,
            addresses: hosts.borrow().owned().into_iter().collect(),
            ..plan::Host::default()
        };
        let engine = Engine::new(node_name, config.model.clone(), host, reconciler);
        let mut agent = Self {
            config: current,
            checks,
            reloads: Reloads::of(config, &mut tasks),
            batches,
            watch_metrics,
            metrics,
            _metrics_server: metrics_server,
            hosts,
            growth: Growth::new(sizes.most),
            route_watch: startup::watch_routes(&datapath, &mut tasks)?,
            tasks,
            datapath,
            logs,
            maps,
            sweeper,
            _running: Running::tell(&config.bpffs)?,
            pressure: PressureWatch::new(events.clone()),
            refusals: Refusals::new(events),
            edges: Edges::new(config),
            attachments: Attachments::default(),
            engine: if stands_alone { engine.stand_alone() } else { engine },
            health,
            readiness: Readiness::new(taint),
            exemptions: Exemptions::default(),
            socket_lb: config.model.socket_lb,
            timeouts: config.model.timeouts,
            sync_period: config.sync_period,
            min_sync_period: config.min_sync_period,
            backoff: Backoff::default(),
            due: Due::new(config.sync_period),
        };
        if !agent.datapath.is_taking_over() {
            agent.attach_sockets()?;
        }
        Ok(agent)
    }

    async fn run(&mut self, [terminate, interrupt]: [&mut Signal; 2]) -> Result<()> {
        // The first round may be the one that hangs.
        self.beat();
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                ended = self.tasks.ended() => bail!(ended),
                read = self.reloads.next() => self.reload(read),
                batch = self.batches.recv() => self.absorb(batch.context("the source of objects ended")?)?,
                changed = self.hosts.changed() => {
                    changed.context("the view of the host's devices ended")?;
                    self.host_changed();
                }
                () = at(Some(self.due.beat)) => self.beat(),
                () = at(self.due.writes) => self.write(),
                () = at(self.due.refused) => self.retry_refused(),
                () = at(self.due.exempt) => self.exempt(),
                () = at(self.due.patience) => self.attach_without_lists()?,
                () = at(self.due.attachments_at()) => self.compare_attachments(),
                () = at(self.due.full_sync_at(self.engine.is_listed())) => self.full_sync(),
                () = at(self.due.sweep_at(self.engine.is_listed() && self.sweeper.is_idle())) => self.sweep(),
                step = self.sweeper.step() => self.sweep_goes_on(step?),
                loaded = self.growth.loaded() => self.grow(loaded)?,
            }
        }
    }

    /// Says that the loop comes round.
    fn beat(&mut self) {
        self.health.beat();
        self.due.beat = Instant::now() + BEAT;
    }

    fn absorb(&mut self, batch: Batch) -> Result<()> {
        let listed = self.engine.is_listed();
        let addresses = self.engine.node_addresses().to_vec();
        self.engine.absorb(batch);
        while let Ok(batch) = self.batches.try_recv() {
            self.engine.absorb(batch);
        }
        if !self.engine.is_listed() {
            return Ok(());
        }
        self.health.queued();
        self.metrics.queued(&self.engine);
        self.health.set_eligible(self.engine.node_is_eligible());
        self.readiness.look(self.engine.node());
        if let Some(pods) = self.engine.take_exempt_pods() {
            self.exemptions.set(pods);
            self.exempt();
        }
        if listed {
            self.due.write_soon();
            if addresses != self.engine.node_addresses() {
                self.follow_edges();
            }
            Ok(())
        } else {
            self.begin()
        }
    }

    /// What exists is known: rows first, then programs, so that the first packet they see
    /// is answered by what is wanted.
    fn begin(&mut self) -> Result<()> {
        let start = Instant::now();
        // Reading the lists took memory in threads that have no more use for it.
        kernel::release_heap();
        let taking_over = takeover::kube_proxy_rules();
        if taking_over {
            self.engine.set_takeover(plan::Takeover::Attaching);
        }
        // Two handovers at once would be one too many: one from kube-proxy, one from smaller maps in use.
        if !taking_over || self.datapath.is_unused() {
            self.make_room()?;
        }
        let mut synced = self.engine.sync(&mut self.maps);
        takeover::leave_connections(&mut self.maps);
        self.due.patience = None;
        self.go_into_service()?;
        if taking_over {
            for step in [plan::Takeover::Attached, plan::Takeover::Done] {
                self.engine.set_takeover(step);
                let round = self.engine.sync(&mut self.maps);
                synced = Synced { rows: synced.rows + round.rows, ..round };
                takeover::leave_connections(&mut self.maps);
            }
        }
        self.written(synced, start);
        kernel::release_heap();
        Ok(())
    }

    fn exempt(&mut self) {
        let pause = self.exemptions.write(&self.datapath, &mut self.maps);
        self.due.exempt = pause.map(|pause| Instant::now() + pause);
    }

    fn host_changed(&mut self) {
        let addresses = self.hosts.borrow_and_update().owned().into_iter().collect();
        if self.engine.set_host_addresses(addresses) {
            self.due.write_soon();
        }
        if self.due.patience.is_none() {
            self.follow_edges();
        }
    }

    fn follow_edges(&mut self) {
        let host = self.hosts.borrow().clone();
        self.edges.follow(&mut self.datapath, &mut self.maps, &host, self.engine.node_addresses());
        self.metrics.set_edges(self.edges.xdp(), self.datapath.attachments());
        self.readiness.attached(self.edges.are_attached(), self.engine.node());
        self.tell_attached();
    }

    fn attach_without_lists(&mut self) -> Result<()> {
        warn!("no complete list of objects yet; attaching with what an earlier agent left, writing nothing");
        self.due.patience = None;
        self.go_into_service()
    }

    fn write(&mut self) {
        let start = Instant::now();
        let synced = self.engine.sync(&mut self.maps);
        self.written(synced, start);
    }

    fn retry_refused(&mut self) {
        let start = Instant::now();
        let synced = self.engine.retry_refused(&mut self.maps);
        self.due.refused = None;
        self.written(synced, start);
    }

    /// Tells how a round went and says when the next is due.
    fn written(&mut self, synced: Synced, start: Instant) {
        self.metrics.synced(&mut self.engine, start.elapsed());
        self.due.writes_not_before = start + self.min_sync_period;
        self.health.synced(|family| self.engine.is_pending(family));
        if let Some(ports) = self.engine.health_ports() {
            self.health.open(ports);
        }
        if synced.rows > 0 {
            self.due.sweep = self.due.sweep.min(start + SWEEP_AFTER_WRITES);
        }
        self.look_at_refused(synced);
        self.readiness.wrote(synced.pending == 0, self.engine.node());
        if synced.pending == 0 {
            self.due.writes = None;
            self.backoff.reset();
            self.engine.report_in_sync(synced, start.elapsed(), &self.watch_metrics);
        } else {
            let pause = self.backoff.next();
            self.due.writes = Some(Instant::now() + pause);
            self.engine.report_failures(pause);
        }
    }

    /// Services that find no room are tried again by themselves, whatever becomes of the others.
    fn look_at_refused(&mut self, synced: Synced) {
        self.metrics.set_refused(self.refusals.look(&self.engine, &mut self.maps));
        self.due.refused = (synced.refused > 0).then(|| {
            let pause = if self.engine.may_have_room() { REFUSED_WITH_ROOM } else { REFUSED };
            let soon = Instant::now() + pause;
            self.due.refused.map_or(soon, |due| due.min(soon))
        });
    }

    fn full_sync(&mut self) {
        self.exempt();
        let start = Instant::now();
        let compared = self.engine.full_sync(&mut self.maps);
        let rest = start.elapsed() * FULL_SYNC_REST;
        self.due.full_sync = Instant::now() + self.sync_period.max(rest);
        if let Ok(repairs) = &compared {
            self.metrics.compared(&self.engine, start.elapsed(), repairs);
        }
        match compared {
            Ok(repairs) if repairs.total() > 0 => warn!(?repairs, "repaired rows that others have changed"),
            Ok(_) => debug!("compared with the kernel: nothing to repair"),
            Err(error) => warn!(%error, "cannot compare with the kernel; trying again at the next full sync"),
        }
    }

    fn sweep(&mut self) {
        self.due.sweep = Instant::now() + SWEEP;
        let now = match monotonic_nanos() {
            Ok(now) => now,
            Err(error) => return warn!(%error, "cannot read the clock; no connection is swept"),
        };
        self.sweeper.survey(now, self.timeouts);
    }

    fn sweep_goes_on(&mut self, step: Step) {
        match step {
            Step::Surveyed(survey, refused) => self.surveyed(survey, refused),
            Step::Removed(swept) => self.swept(swept),
        }
    }

    fn surveyed(&mut self, survey: Result<Box<Survey>, MapError>, refused: Result<Refused, KernelError>) {
        let survey = match survey {
            Ok(survey) => survey,
            Err(error) => return warn!(%error, "cannot sweep connections; trying again"),
        };
        self.metrics.surveyed(&survey, &self.engine);
        let verdict = self.engine.judge(&survey);
        let pressure = self.engine.pressure(&mut self.maps, &survey);
        self.sweeper.remove(survey, verdict);
        let refused = refused.inspect_err(|error| debug!(%error, "cannot read the counters of drops")).ok();
        self.pressure.look(&pressure, refused);
        self.growth.look(&pressure, || self.engine.needs(), &self.datapath);
        self.metrics.set_pressure(pressure.into());
    }

    fn swept(&mut self, swept: Result<Swept, SweepError>) {
        let took = self.sweeper.took();
        self.due.sweep_not_before = Instant::now() + took * SWEEP_REST;
        match swept {
            Ok(swept) => {
                let total = self.metrics.swept(took, &swept);
                if swept != Swept::default() {
                    debug!(?swept, "removed connections that are over or no longer allowed");
                }
                if swept.destroyed > 0 {
                    let destroyed = swept.destroyed;
                    info!(destroyed, total, "destroyed connected UDP sockets whose backend is gone");
                }
            }
            Err(error) => warn!(%error, "cannot sweep connections; trying again"),
        }
    }
}

fn secret() -> Result<[u64; 2]> {
    let number = || getrandom::u64().context("cannot get a random number from the kernel");
    Ok([number()?, number()?])
}

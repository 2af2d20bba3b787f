//! Counts what the agent does, and keeps the levels that it last saw for whoever asks.

mod config;
mod kube_proxy;
mod levels;
mod no_local;
mod reference;
mod series;
mod traffic;
pub(super) mod waiting;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

pub(super) use self::no_local::NoLocal;
pub use self::reference::reference;
use self::{
    config::ConfigMetrics, kube_proxy::KubeProxy, levels::Levels, traffic::TrafficMetrics, waiting::Changes,
};
use super::engine::Engine;
use crate::{
    dataplane::{MapName, Pressure, Repairs, Survey, Swept},
    kernel::{Part, XdpStatus},
    meter::Meter,
};

const DESTROYED: Meter = Meter::counter(
    "shunt_udp_sockets_destroyed_total",
    &[],
    "Connected UDP sockets that were destroyed because their backend was gone",
);
const GROWTHS: Meter = Meter::counter(
    "shunt_map_growths_total",
    &[],
    "Times that a generation with larger maps took over, while traffic flowed",
);
const GROWTHS_FAILED: Meter = Meter::counter(
    "shunt_map_growth_failures_total",
    &[],
    "Times that maps were to be made larger and could not be",
);
const REPAIRED: Meter = Meter::counter(
    "shunt_repaired_rows_total",
    &["map"],
    "Rows that others had changed, found and put right by a full sync; of slots, ranges",
);
const REPAIRED_PARTS: Meter = Meter::counter(
    "shunt_repaired_attachments_total",
    &["part"],
    "Programs at devices, socket hooks, settings of loopback and pins that others had taken away, and that were put back",
);
const TO_MAP: Meter = Meter::histogram(
    "shunt_event_to_map_duration_seconds",
    &[],
    "From the arrival of a change until the rows of a service it touches were written",
);
const EXPIRED: Meter = Meter::counter(
    "shunt_connections_expired_total",
    &[],
    "Connections that were over, and whose rows a sweep removed",
);

const REFUSED: Meter = Meter::gauge(
    "shunt_services_refused",
    &["map"],
    "Services for which there is no room, by the map that lacks it; `shunt service list` names them",
);

/// The metrics that are counted in this file.
pub(super) const AGENT: [Meter; 8] =
    [DESTROYED, GROWTHS, GROWTHS_FAILED, REPAIRED, REPAIRED_PARTS, TO_MAP, EXPIRED, REFUSED];

type ByMap<M> = Family<[(&'static str, &'static str); 1], M>;

/// Maps that may lack room for a Service.
const LACKING: [MapName; 5] =
    [MapName::Frontends, MapName::Backends, MapName::Slots, MapName::SourceRanges, MapName::Services];

/// Counters of the agent, shared with whoever shows them.
#[derive(Debug)]
pub struct AgentMetrics {
    kube_proxy: KubeProxy,
    sockets_destroyed: Counter,
    growths: Counter,
    growths_failed: Counter,
    repaired: ByMap<Counter>,
    repaired_parts: ByMap<Counter>,
    to_map: Histogram,
    expired: Counter,
    refused: ByMap<Gauge>,
    pressure: Mutex<Arc<Pressure>>,
    xdp: Mutex<Arc<[XdpStatus]>>,
    attached: Mutex<Vec<(String, &'static str)>>,
    conntrack_limit: u64,
    traffic: TrafficMetrics,
    config: ConfigMetrics,
}

impl AgentMetrics {
    /// Of an agent whose connections may take so many bytes.
    pub(super) fn new(conntrack_limit: u64) -> Self {
        Self {
            conntrack_limit,
            kube_proxy: KubeProxy::default(),
            sockets_destroyed: Counter::default(),
            growths: Counter::default(),
            growths_failed: Counter::default(),
            repaired: ByMap::default(),
            repaired_parts: ByMap::default(),
            // From half a millisecond to half a minute.
            to_map: Histogram::new(exponential_buckets(0.0005, 2.0, 16)),
            expired: Counter::default(),
            refused: ByMap::default(),
            pressure: Mutex::default(),
            xdp: Mutex::default(),
            attached: Mutex::default(),
            traffic: TrafficMetrics::default(),
            config: ConfigMetrics::default(),
        }
    }

    /// Makes the counters and levels part of what is shown.
    pub fn register(self: &Arc<Self>, registry: &mut Registry) {
        self.kube_proxy.register(registry);
        self.count_repairs(&Repairs::default());
        DESTROYED.register(registry, self.sockets_destroyed.clone());
        GROWTHS.register(registry, self.growths.clone());
        GROWTHS_FAILED.register(registry, self.growths_failed.clone());
        REPAIRED.register(registry, self.repaired.clone());
        Part::ALL.into_iter().for_each(|part| self.count_parts(part, 0));
        REPAIRED_PARTS.register(registry, self.repaired_parts.clone());
        TO_MAP.register(registry, self.to_map.clone());
        EXPIRED.register(registry, self.expired.clone());
        self.set_refused(BTreeMap::new());
        REFUSED.register(registry, self.refused.clone());
        registry.register_collector(Box::new(Levels(self.clone())));
        registry.register_collector(Box::new(self.traffic.clone()));
        self.config.register(registry);
    }

    /// Changes came in.
    pub(super) fn queued(&self, engine: &Engine) {
        self.kube_proxy.queued();
        self.kube_proxy.set_waiting(engine.waiting());
    }

    /// A round of writes is over.
    pub(super) fn synced(&self, engine: &mut Engine, took: Duration) {
        self.kube_proxy.round(took, |family| engine.is_pending(family));
        engine.take_written().iter().for_each(|changes| self.written(changes));
        self.kube_proxy.set_waiting(engine.waiting());
        self.kube_proxy.set_no_local(engine.no_local().counts());
    }

    fn written(&self, changes: &Changes) {
        self.kube_proxy.programmed(changes);
        for arrived in &changes.arrived {
            self.to_map.observe(arrived.elapsed().as_secs_f64());
        }
    }

    /// Everything was compared with the kernel.
    pub(super) fn compared(&self, engine: &Engine, took: Duration, repairs: &Repairs) {
        self.kube_proxy.compared(took, |family| engine.is_pending(family));
        self.count_repairs(repairs);
    }

    /// So many things were taken away, and put back.
    pub(super) fn count_repaired_parts(&self, parts: &[Part]) {
        parts.iter().for_each(|part| self.count_parts(*part, 1));
    }

    fn count_parts(&self, part: Part, count: u64) {
        self.repaired_parts.get_or_create(&REPAIRED_PARTS.with([part.name()])).inc_by(count);
    }

    fn count_repairs(&self, repairs: &Repairs) {
        let Repairs { frontends, backends, slots, source_ranges, services, node } = *repairs;
        for (map, rows) in [
            ("frontends", frontends),
            ("backends", backends),
            ("slots", slots),
            ("source_ranges", source_ranges),
            ("services", services),
            ("node", node),
        ] {
            self.repaired.get_or_create(&REPAIRED.with([map])).inc_by(rows as u64);
        }
    }

    /// A sweep of the connections is over. Returns how many sockets were destroyed in all.
    pub(super) fn swept(&self, took: Duration, swept: &Swept) -> u64 {
        self.kube_proxy.swept(took, swept);
        self.expired.inc_by(swept.expired as u64);
        self.sockets_destroyed.inc_by(swept.destroyed as u64) + swept.destroyed as u64
    }

    /// Services for which there is no room, by the map that lacks it.
    pub(super) fn set_refused(&self, counts: BTreeMap<MapName, usize>) {
        for map in LACKING {
            let count = counts.get(&map).copied().unwrap_or(0);
            self.refused.get_or_create(&REFUSED.with([map.name()])).set(count as i64);
        }
    }

    pub(super) fn count_growth(&self) {
        self.growths.inc();
    }

    pub(super) fn count_growth_failed(&self) {
        self.growths_failed.inc();
    }

    pub(super) fn set_pressure(&self, pressure: Arc<Pressure>) {
        *self.pressure.lock().unwrap_or_else(PoisonError::into_inner) = pressure;
    }

    /// All connections were looked at.
    pub(super) fn surveyed(&self, survey: &Survey, engine: &Engine) {
        self.traffic.take(survey, engine.reconciler());
    }

    /// The edges were followed: what became of XDP, and where tc programs are attached, and how.
    pub(super) fn set_edges(&self, xdp: &[XdpStatus], attached: Vec<(String, &'static str)>) {
        *self.xdp.lock().unwrap_or_else(PoisonError::into_inner) = xdp.into();
        *self.attached.lock().unwrap_or_else(PoisonError::into_inner) = attached;
    }

    /// Interfaces with tc programs, and how they are attached.
    pub(super) fn attached(&self) -> Vec<(String, &'static str)> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Which configuration is in force.
    pub(super) fn config(&self) -> &ConfigMetrics {
        &self.config
    }

    /// How near the datapath was to its limits when connections were last swept.
    pub fn pressure(&self) -> Arc<Pressure> {
        self.pressure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What became of XDP on the devices.
    pub fn xdp(&self) -> Arc<[XdpStatus]> {
        self.xdp.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

//! Which configuration is in force, and how it went when its file was read again.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::meter::Meter;

const RELOADS: Meter = Meter::counter(
    "shunt_config_reloads_total",
    &["result"],
    "Times that the configuration file has changed, by whether it was applied or refused",
);
const INFO: Meter =
    Meter::gauge("shunt_config_info", &["hash"], "1 for the SHA-256 of the configuration file in force");
const FAILED: Meter = Meter::gauge(
    "shunt_config_last_reload_failed",
    &[],
    "1 if the configuration file was refused when it was last read; an older one is in force",
);
const WAITING: Meter = Meter::gauge(
    "shunt_config_fields_waiting",
    &[],
    "Fields of the configuration file that take effect when the agent is started again",
);

/// The metrics of this module.
pub(super) const CONFIG: [Meter; 4] = [RELOADS, INFO, FAILED, WAITING];

/// Counters of the configuration, shared with whoever shows them.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct ConfigMetrics {
    reloads: Family<[(&'static str, &'static str); 1], Counter>,
    info: Family<[(&'static str, String); 1], Gauge>,
    failed: Gauge,
    waiting: Gauge,
}

impl ConfigMetrics {
    /// Makes them part of what is shown.
    pub(super) fn register(&self, registry: &mut Registry) {
        for result in ["applied", "refused"] {
            drop(self.reloads.get_or_create(&RELOADS.with([result])));
        }
        RELOADS.register(registry, self.reloads.clone());
        INFO.register(registry, self.info.clone());
        FAILED.register(registry, self.failed.clone());
        WAITING.register(registry, self.waiting.clone());
    }

    /// The configuration the agent starts with.
    pub(in crate::agent) fn started(&self, hash: &str) {
        self.info.clear();
        self.info.get_or_create(&INFO.with([hash.to_owned()])).set(1);
    }

    pub(in crate::agent) fn applied(&self, hash: &str, waiting: usize) {
        self.started(hash);
        self.reloads.get_or_create(&RELOADS.with(["applied"])).inc();
        self.failed.set(0);
        self.waiting.set(waiting as i64);
    }

    pub(in crate::agent) fn refused(&self) {
        self.reloads.get_or_create(&RELOADS.with(["refused"])).inc();
        self.failed.set(1);
    }
}

//! Which configuration is in force, and how it went when its file was read again.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// What became of a file that was read again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reload {
    result: &'static str,
}

const APPLIED: Reload = Reload { result: "applied" };
const REFUSED: Reload = Reload { result: "refused" };

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Version {
    hash: String,
}

/// Counters of the configuration, shared with whoever shows them.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct ConfigMetrics {
    reloads: Family<Reload, Counter>,
    info: Family<Version, Gauge>,
    failed: Gauge,
    waiting: Gauge,
}

impl ConfigMetrics {
    /// Makes them part of what is shown.
    pub(super) fn register(&self, registry: &mut Registry) {
        for result in [APPLIED, REFUSED] {
            drop(self.reloads.get_or_create(&result));
        }
        let help = "Times that the configuration file has changed";
        registry.register("config_reloads", help, self.reloads.clone());
        let help = "1 for the SHA-256 of the configuration file in force";
        registry.register("config_info", help, self.info.clone());
        let help = "1 if the configuration file was refused when it was last read; an older one is in force";
        registry.register("config_last_reload_failed", help, self.failed.clone());
        let help = "Fields of the configuration file that take effect when the agent is started again";
        registry.register("config_fields_waiting", help, self.waiting.clone());
    }

    /// The configuration the agent starts with.
    pub(in crate::agent) fn started(&self, hash: &str) {
        self.info.clear();
        self.info.get_or_create(&Version { hash: hash.to_owned() }).set(1);
    }

    pub(in crate::agent) fn applied(&self, hash: &str, waiting: usize) {
        self.started(hash);
        self.reloads.get_or_create(&APPLIED).inc();
        self.failed.set(0);
        self.waiting.set(waiting as i64);
    }

    pub(in crate::agent) fn refused(&self) {
        self.reloads.get_or_create(&REFUSED).inc();
        self.failed.set(1);
    }
}

//! Counts what the agent does to the host beyond its own maps, and keeps the levels that it
//! last saw for whoever asks.

mod config;
mod levels;

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::{metrics::counter::Counter, registry::Registry};

use self::{config::ConfigMetrics, levels::Levels};
use crate::{dataplane::Pressure, kernel::XdpStatus};

/// Counters of the agent, shared with whoever shows them.
#[derive(Debug, Default)]
pub struct AgentMetrics {
    sockets_destroyed: Counter,
    growths: Counter,
    growths_failed: Counter,
    pressure: Mutex<Arc<Pressure>>,
    xdp: Mutex<Arc<[XdpStatus]>>,
    config: ConfigMetrics,
}

impl AgentMetrics {
    /// Makes the counters and levels part of what is shown.
    pub fn register(self: &Arc<Self>, registry: &mut Registry) {
        let help = "Connected UDP sockets that were destroyed because their backend was gone";
        registry.register("udp_sockets_destroyed", help, self.sockets_destroyed.clone());
        let help = "Times that a generation with larger maps took over, while traffic flowed";
        registry.register("map_growths", help, self.growths.clone());
        let help = "Times that maps were to be made larger and could not be";
        registry.register("map_growth_failures", help, self.growths_failed.clone());
        registry.register_collector(Box::new(Levels(self.clone())));
        self.config.register(registry);
    }

    /// Counts sockets and returns how many there have been in all.
    pub(super) fn count_sockets_destroyed(&self, count: usize) -> u64 {
        self.sockets_destroyed.inc_by(count as u64) + count as u64
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

    pub(super) fn set_xdp(&self, statuses: &[XdpStatus]) {
        *self.xdp.lock().unwrap_or_else(PoisonError::into_inner) = statuses.into();
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

    /// Connected UDP sockets that were destroyed because their backend was gone.
    pub fn sockets_destroyed(&self) -> u64 {
        self.sockets_destroyed.get()
    }
}

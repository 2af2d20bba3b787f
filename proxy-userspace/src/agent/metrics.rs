//! Counts what the agent does to the host beyond its own maps.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use crate::dataplane::Pressure;

/// Counters of the agent, shared with whoever shows them.
#[derive(Debug, Default)]
pub struct AgentMetrics {
    sockets_destroyed: AtomicU64,
    pressure: Mutex<Arc<Pressure>>,
}

impl AgentMetrics {
    /// Counts sockets and returns how many there have been in all.
    pub(super) fn count_sockets_destroyed(&self, count: usize) -> u64 {
        self.sockets_destroyed.fetch_add(count as u64, Ordering::Relaxed) + count as u64
    }

    pub(super) fn set_pressure(&self, pressure: Arc<Pressure>) {
        *self.pressure.lock().unwrap_or_else(PoisonError::into_inner) = pressure;
    }

    /// How near the datapath was to its limits when connections were last swept.
    pub fn pressure(&self) -> Arc<Pressure> {
        self.pressure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connected UDP sockets that were destroyed because their backend was gone.
    pub fn sockets_destroyed(&self) -> u64 {
        self.sockets_destroyed.load(Ordering::Relaxed)
    }
}

//! Counts what the agent does to the host beyond its own maps.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the agent, shared with whoever shows them.
#[derive(Debug, Default)]
pub struct AgentMetrics {
    sockets_destroyed: AtomicU64,
}

impl AgentMetrics {
    /// Counts sockets and returns how many there have been in all.
    pub(super) fn count_sockets_destroyed(&self, count: usize) -> u64 {
        self.sockets_destroyed.fetch_add(count as u64, Ordering::Relaxed) + count as u64
    }

    /// Connected UDP sockets that were destroyed because their backend was gone.
    pub fn sockets_destroyed(&self) -> u64 {
        self.sockets_destroyed.load(Ordering::Relaxed)
    }
}

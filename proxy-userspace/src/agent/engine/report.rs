//! What is told of the outcome of writes.

use std::time::Duration;

use tracing::{debug, info, warn};

use super::{Engine, Synced};
use crate::watch::WatchMetrics;

/// Services whose failure is told; the number of all is told with them.
const FAILURES_TOLD: usize = 3;

impl Engine {
    /// Says why writes failed: the first reasons, and how many there are.
    pub(in crate::agent) fn report_failures(&self, retry: Duration) {
        let pending = self.reconciler.pending_count();
        for error in self.reconciler.common_failures() {
            warn!(%error, pending, ?retry, "cannot write rows of the node; trying again");
        }
        let failures = self.reconciler.pending().filter_map(|(service, error)| Some((service, error?)));
        for (service, error) in failures.take(FAILURES_TOLD) {
            warn!(%service, %error, pending, ?retry, "cannot write rows of a service; trying again");
        }
    }

    /// Says that the kernel holds what is wanted. Tests and people wait for this line.
    pub(in crate::agent) fn report_in_sync(&self, synced: Synced, took: Duration, source: &WatchMetrics) {
        let (revision, services) = (self.revision, self.state.services().count());
        let (frontends, backends) = self.reconciler.counts();
        let Synced { rows: writes, pending, refused } = synced;
        let duration_us = took.as_micros() as u64;
        let versions = (!self.versions.is_empty()).then(|| self.versions.to_string());
        let resource_versions = versions.as_deref();
        let (rejected, unreadable) = (source.rejected_total(), source.files_failed());
        macro_rules! say {
            ($level:ident) => {
                $level!(
                    target: "shunt::agent",
                    revision, services, frontends, backends, writes, pending, refused, duration_us,
                    rejected, unreadable, resource_versions, "in sync"
                )
            };
        }
        if writes > 0 { say!(info) } else { say!(debug) }
    }
}

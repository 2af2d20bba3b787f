//! Counts what the sources refuse and what fails.

use std::sync::atomic::{AtomicU64, Ordering};

use super::convert::Kind;

/// Counters of a source, shared with whoever shows them.
#[derive(Debug, Default)]
pub struct WatchMetrics {
    rejected: [AtomicU64; Kind::ALL.len()],
    /// Annotations of objects that were taken without them.
    ignored: [AtomicU64; Kind::ALL.len()],
    /// Manifest files that were not YAML or JSON when they were read.
    files_failed: AtomicU64,
    /// Errors of lists and watches, retries included.
    watch_errors: AtomicU64,
}

impl WatchMetrics {
    pub(super) fn count_rejected(&self, kind: Kind) {
        self.rejected[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_ignored(&self, kind: Kind) {
        self.ignored[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_failed_file(&self) {
        self.files_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_watch_error(&self) {
        self.watch_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Objects of `kind` that were refused.
    pub fn rejected(&self, kind: Kind) -> u64 {
        self.rejected[kind as usize].load(Ordering::Relaxed)
    }

    /// Annotations of objects of `kind` that were ignored because they make no sense.
    pub fn ignored(&self, kind: Kind) -> u64 {
        self.ignored[kind as usize].load(Ordering::Relaxed)
    }

    /// Objects that were refused.
    pub fn rejected_total(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self.rejected(*kind)).sum()
    }

    /// Manifest files that were not YAML or JSON when they were read.
    pub fn files_failed(&self) -> u64 {
        self.files_failed.load(Ordering::Relaxed)
    }

    /// Errors of lists and watches, retries included.
    pub fn watch_errors(&self) -> u64 {
        self.watch_errors.load(Ordering::Relaxed)
    }
}

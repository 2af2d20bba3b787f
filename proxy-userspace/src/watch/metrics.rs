//! Counts what the sources refuse and what fails.

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::convert::Kind;

/// Counters of a source, shared with whoever shows them.
#[derive(Debug, Default)]
pub struct WatchMetrics {
    rejected: Family<[(&'static str, &'static str); 1], Counter>,
    /// Annotations of objects that were taken without them.
    ignored: Family<[(&'static str, &'static str); 1], Counter>,
    /// Manifest files that were not YAML or JSON when they were read.
    files_failed: Counter,
    /// Errors of lists and watches, retries included.
    watch_errors: Counter,
}

fn label(kind: Kind) -> [(&'static str, &'static str); 1] {
    [("kind", kind.name())]
}

impl WatchMetrics {
    /// Makes the counters part of what is shown.
    pub fn register(&self, registry: &mut Registry) {
        let (rejected, ignored) = (self.rejected.clone(), self.ignored.clone());
        // A rate needs the zero that comes before the first.
        for kind in Kind::ALL {
            drop((rejected.get_or_create(&label(kind)), ignored.get_or_create(&label(kind))));
        }
        registry.register(
            "rejected_objects",
            "Objects that were refused; their last good state stays",
            rejected,
        );
        registry.register("ignored_annotations", "Annotations that make no sense and had no effect", ignored);
        let failed = self.files_failed.clone();
        registry.register(
            "unreadable_manifests",
            "Manifest files that were not YAML or JSON when read",
            failed,
        );
        let errors = self.watch_errors.clone();
        registry.register("watch_errors", "Errors of lists and watches, retries included", errors);
    }

    pub(super) fn count_rejected(&self, kind: Kind) {
        self.rejected.get_or_create(&label(kind)).inc();
    }

    pub(super) fn count_ignored(&self, kind: Kind) {
        self.ignored.get_or_create(&label(kind)).inc();
    }

    pub(super) fn count_failed_file(&self) {
        self.files_failed.inc();
    }

    pub(super) fn count_watch_error(&self) {
        self.watch_errors.inc();
    }

    /// Objects of `kind` that were refused.
    pub fn rejected(&self, kind: Kind) -> u64 {
        self.rejected.get_or_create(&label(kind)).get()
    }

    /// Annotations of objects of `kind` that were ignored because they make no sense.
    pub fn ignored(&self, kind: Kind) -> u64 {
        self.ignored.get_or_create(&label(kind)).get()
    }

    /// Objects that were refused.
    pub fn rejected_total(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self.rejected(*kind)).sum()
    }

    /// Manifest files that were not YAML or JSON when they were read.
    pub fn files_failed(&self) -> u64 {
        self.files_failed.get()
    }

    /// Errors of lists and watches, retries included.
    pub fn watch_errors(&self) -> u64 {
        self.watch_errors.get()
    }
}

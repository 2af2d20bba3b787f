//! Counts what the sources refuse and what fails.

use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::convert::Kind;
use crate::meter::Meter;

const REJECTED: Meter = Meter::counter(
    "shunt_rejected_objects_total",
    &["kind"],
    "Objects that were refused; their last good state stays",
);
const IGNORED: Meter = Meter::counter(
    "shunt_ignored_parts_total",
    &["kind"],
    "Parts of objects that make no sense and had no effect, while the rest of the object counts",
);
const UNREADABLE: Meter = Meter::counter(
    "shunt_unreadable_manifests_total",
    &[],
    "Manifest files that were not YAML or JSON when read",
);
const ERRORS: Meter =
    Meter::counter("shunt_watch_errors_total", &["kind"], "Errors of lists and watches, retries included");
const FOLLOWING: Meter = Meter::gauge(
    "shunt_watch_up",
    &["kind"],
    "1 while objects are followed, 0 until they are, and since a list, a watch or a look at the folder failed",
);
const OBJECTS: Meter =
    Meter::gauge("shunt_watched_objects", &["kind"], "Objects that exist, of those that were not refused");
const LAST_EVENT: Meter = Meter::gauge(
    "shunt_watch_last_event_timestamp_seconds",
    &["kind"],
    "When the API server last said something about the kind, bookmarks included, or the folder was last read, in Unix time",
);

/// The metrics of this module.
pub const WATCH: [Meter; 7] = [REJECTED, IGNORED, UNREADABLE, ERRORS, FOLLOWING, OBJECTS, LAST_EVENT];

type ByKind<M> = Family<[(&'static str, &'static str); 1], M>;

/// Counters of a source, shared with whoever shows them.
#[derive(Debug, Default)]
pub struct WatchMetrics {
    rejected: ByKind<Counter>,
    /// Parts of objects that were taken without them.
    ignored: ByKind<Counter>,
    /// Manifest files that were not YAML or JSON when they were read.
    files_failed: Counter,
    /// Errors of lists and watches, retries included.
    watch_errors: ByKind<Counter>,
    following: ByKind<Gauge>,
    objects: ByKind<Gauge>,
    last_event: ByKind<Gauge<f64, AtomicU64>>,
}

fn label(kind: Kind) -> [(&'static str, &'static str); 1] {
    REJECTED.with([kind.name()])
}

impl WatchMetrics {
    /// Makes the counters part of what is shown.
    pub fn register(&self, registry: &mut Registry) {
        // A rate needs the zero that comes before the first.
        for kind in Kind::ALL {
            for counter in [&self.rejected, &self.ignored, &self.watch_errors] {
                drop(counter.get_or_create(&label(kind)));
            }
        }
        REJECTED.register(registry, self.rejected.clone());
        IGNORED.register(registry, self.ignored.clone());
        UNREADABLE.register(registry, self.files_failed.clone());
        ERRORS.register(registry, self.watch_errors.clone());
        FOLLOWING.register(registry, self.following.clone());
        OBJECTS.register(registry, self.objects.clone());
        LAST_EVENT.register(registry, self.last_event.clone());
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

    pub(super) fn count_watch_error(&self, kind: Kind) {
        self.watch_errors.get_or_create(&label(kind)).inc();
    }

    /// Whether objects of a kind are followed at the moment.
    pub(super) fn set_following(&self, kind: Kind, follows: bool) {
        self.following.get_or_create(&label(kind)).set(follows.into());
    }

    /// What [`WatchMetrics::set_following`] said last.
    pub(super) fn follows(&self, kind: Kind) -> bool {
        self.following.get_or_create(&label(kind)).get() == 1
    }

    /// So many objects of a kind exist, by what was reported just now.
    pub(super) fn set_objects(&self, kind: Kind, count: usize) {
        self.objects.get_or_create(&label(kind)).set(count as i64);
    }

    /// The source said something about a kind just now, be it that nothing has changed.
    pub(super) fn heard(&self, kind: Kind) {
        self.set_following(kind, true);
        let now = Timestamp::now().as_duration().as_secs_f64();
        self.last_event.get_or_create(&label(kind)).set(now);
    }

    /// Objects of `kind` that were refused.
    pub fn rejected(&self, kind: Kind) -> u64 {
        self.rejected.get_or_create(&label(kind)).get()
    }

    /// Parts of objects of `kind` that were ignored because they make no sense.
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
        Kind::ALL.iter().map(|kind| self.watch_errors.get_or_create(&label(*kind)).get()).sum()
    }
}

//! kube-proxy's own metrics, as far as they have a meaning here. Names, labels and buckets
//! are kube-proxy's; `docs/metrics.md` says which are left out and where ours differ.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use jiff::Timestamp;
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family as Series,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets, linear_buckets},
    },
    registry::Registry,
};

use super::waiting::{Changes, Waiting};
use crate::{dataplane::Swept, meter::Meter, model::Family};

const SYNC: Meter = Meter::histogram(
    "kubeproxy_sync_proxy_rules_duration_seconds",
    &["ip_family"],
    "Time of one round of writes, or of one comparison with the kernel",
);
const FULL: Meter = Meter::histogram(
    "kubeproxy_sync_full_proxy_rules_duration_seconds",
    &["ip_family"],
    "Time of one round that looked at every row: the first, and each comparison with the kernel",
);
const PARTIAL: Meter = Meter::histogram(
    "kubeproxy_sync_partial_proxy_rules_duration_seconds",
    &["ip_family"],
    "Time of one round that wrote what had changed",
);
const LAST: Meter = Meter::gauge(
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
    &["ip_family"],
    "When everything wanted was last known to be written, in Unix time",
);
const QUEUED: Meter = Meter::gauge(
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
    &["ip_family"],
    "When a change last came in, in Unix time; much later than the last sync, syncing is stuck",
);
const ENDPOINTS_PENDING: Meter = Meter::gauge(
    "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
    &[],
    "Changes of EndpointSlices that are not written yet",
);
const ENDPOINTS: Meter = Meter::counter(
    "kubeproxy_sync_proxy_rules_endpoint_changes_total",
    &[],
    "Changes of EndpointSlices that came in",
);
const SERVICES_PENDING: Meter = Meter::gauge(
    "kubeproxy_sync_proxy_rules_service_changes_pending",
    &[],
    "Services whose change is not written yet",
);
const SERVICES: Meter = Meter::counter(
    "kubeproxy_sync_proxy_rules_service_changes_total",
    &[],
    "Changes of Services that came in",
);
const PROGRAMMING: Meter = Meter::histogram(
    "kubeproxy_network_programming_duration_seconds",
    &["ip_family"],
    "From what triggered a change of an EndpointSlice, by its annotation, until its rows were written",
);
const NO_LOCAL: Meter = Meter::gauge(
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
    &["traffic_policy", "ip_family"],
    "Service ports with a traffic policy Local, and with endpoints, of which none is on this node",
);
const SWEEP: Meter = Meter::histogram(
    "kubeproxy_conntrack_reconciler_sync_duration_seconds",
    &["ip_family"],
    "Time of one sweep of the connections of both families",
);
const SWEPT: Meter = Meter::counter(
    "kubeproxy_conntrack_reconciler_deleted_entries_total",
    &["ip_family"],
    "Flows that were cut because their service no longer leads where they went",
);

/// The metrics of this module.
pub(super) const KUBE_PROXY: [Meter; 13] = [
    SYNC,
    FULL,
    PARTIAL,
    LAST,
    QUEUED,
    ENDPOINTS_PENDING,
    ENDPOINTS,
    SERVICES_PENDING,
    SERVICES,
    PROGRAMMING,
    NO_LOCAL,
    SWEEP,
    SWEPT,
];

type Labels<const N: usize> = [(&'static str, &'static str); N];
type Durations = Series<Labels<1>, Histogram, fn() -> Histogram>;
type Moments = Series<Labels<1>, Gauge<f64, AtomicU64>>;

/// The traffic policies in the order of [`super::NoLocal`].
const POLICIES: [&str; 2] = ["internal", "external"];

#[derive(Debug)]
pub(super) struct KubeProxy {
    /// Changes that were triggered before say nothing about this agent.
    started: Timestamp,
    /// A round has been written.
    written: AtomicBool,
    sync: Durations,
    full: Durations,
    partial: Durations,
    last: Moments,
    queued: Moments,
    endpoints_pending: Gauge,
    endpoints: Counter,
    services_pending: Gauge,
    services: Counter,
    programming: Durations,
    no_local: Series<Labels<2>, Gauge>,
    sweep: Durations,
    swept: Series<Labels<1>, Counter>,
}

impl Default for KubeProxy {
    fn default() -> Self {
        let durations = || Durations::new_with_constructor(round_buckets);
        Self {
            started: Timestamp::now(),
            written: AtomicBool::new(false),
            sync: durations(),
            full: durations(),
            partial: durations(),
            last: Moments::default(),
            queued: Moments::default(),
            endpoints_pending: Gauge::default(),
            endpoints: Counter::default(),
            services_pending: Gauge::default(),
            services: Counter::default(),
            programming: Durations::new_with_constructor(programming_buckets),
            no_local: Series::default(),
            sweep: durations(),
            swept: Series::default(),
        }
    }
}

fn round_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

fn programming_buckets() -> Histogram {
    let (quarters, seconds) = (linear_buckets(0.25, 0.25, 2), linear_buckets(1.0, 1.0, 59));
    let (fives, thirties) = (linear_buckets(60.0, 5.0, 12), linear_buckets(120.0, 30.0, 7));
    Histogram::new(quarters.chain(seconds).chain(fives).chain(thirties))
}

impl KubeProxy {
    pub(super) fn register(&self, registry: &mut Registry) {
        // A rate needs the zero that comes before the first.
        for family in Family::ALL {
            for (meter, series) in [
                (&SYNC, &self.sync),
                (&FULL, &self.full),
                (&PARTIAL, &self.partial),
                (&PROGRAMMING, &self.programming),
                (&SWEEP, &self.sweep),
            ] {
                drop(series.get_or_create(&meter.with([family.name()])));
            }
            drop(self.swept.get_or_create(&SWEPT.with([family.name()])));
        }
        self.set_no_local([[0; 2]; 2]);
        SYNC.register(registry, self.sync.clone());
        FULL.register(registry, self.full.clone());
        PARTIAL.register(registry, self.partial.clone());
        LAST.register(registry, self.last.clone());
        QUEUED.register(registry, self.queued.clone());
        ENDPOINTS_PENDING.register(registry, self.endpoints_pending.clone());
        ENDPOINTS.register(registry, self.endpoints.clone());
        SERVICES_PENDING.register(registry, self.services_pending.clone());
        SERVICES.register(registry, self.services.clone());
        PROGRAMMING.register(registry, self.programming.clone());
        NO_LOCAL.register(registry, self.no_local.clone());
        SWEEP.register(registry, self.sweep.clone());
        SWEPT.register(registry, self.swept.clone());
    }

    /// A change came in.
    pub(super) fn queued(&self) {
        for family in Family::ALL {
            set_now(&self.queued.get_or_create(&QUEUED.with([family.name()])));
        }
    }

    /// What came in so far, and what of it waits.
    pub(super) fn set_waiting(&self, waiting: &Waiting) {
        let (seen, pending) = (waiting.seen(), waiting.pending());
        self.endpoints.inc_by(seen.endpoints.saturating_sub(self.endpoints.get()));
        self.services.inc_by(seen.services.saturating_sub(self.services.get()));
        self.endpoints_pending.set(pending.endpoints.cast_signed());
        self.services_pending.set(pending.services.cast_signed());
    }

    /// A round of writes is over. It takes both families together, and counts for both.
    pub(super) fn round(&self, took: Duration, is_pending: impl Fn(Family) -> bool) {
        let first = !self.written.swap(true, Ordering::Relaxed);
        self.observe(took, first, is_pending);
    }

    /// Everything was compared with the kernel.
    pub(super) fn compared(&self, took: Duration, is_pending: impl Fn(Family) -> bool) {
        self.observe(took, true, is_pending);
    }

    fn observe(&self, took: Duration, full: bool, is_pending: impl Fn(Family) -> bool) {
        for family in Family::ALL {
            let seconds = took.as_secs_f64();
            self.sync.get_or_create(&SYNC.with([family.name()])).observe(seconds);
            let (meter, series) = if full { (&FULL, &self.full) } else { (&PARTIAL, &self.partial) };
            series.get_or_create(&meter.with([family.name()])).observe(seconds);
            if !is_pending(family) {
                set_now(&self.last.get_or_create(&LAST.with([family.name()])));
            }
        }
    }

    /// The rows of changes are written.
    pub(super) fn programmed(&self, changes: &Changes) {
        let now = Timestamp::now();
        for (family, triggered) in changes.triggers.iter().filter(|(_, at)| *at > self.started) {
            let latency = now.duration_since(*triggered).as_secs_f64();
            self.programming.get_or_create(&PROGRAMMING.with([family.name()])).observe(latency);
        }
    }

    /// By family, then by policy.
    pub(super) fn set_no_local(&self, counts: [[usize; 2]; 2]) {
        for (family, counts) in Family::ALL.into_iter().zip(counts) {
            for (policy, count) in POLICIES.into_iter().zip(counts) {
                let labels = NO_LOCAL.with([policy, family.name()]);
                self.no_local.get_or_create(&labels).set(count as i64);
            }
        }
    }

    /// A sweep is over; it takes both families together.
    pub(super) fn swept(&self, took: Duration, swept: &Swept) {
        for (family, cut) in Family::ALL.into_iter().zip(swept.cut) {
            self.sweep.get_or_create(&SWEEP.with([family.name()])).observe(took.as_secs_f64());
            self.swept.get_or_create(&SWEPT.with([family.name()])).inc_by(cut as u64);
        }
    }
}

fn set_now(gauge: &Gauge<f64, AtomicU64>) {
    gauge.set(Timestamp::now().as_duration().as_secs_f64());
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn text(metrics: &KubeProxy) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        metrics.register(&mut registry);
        encode(&mut text, &registry).expect("text takes everything");
        text
    }

    #[test]
    fn the_first_round_is_full_and_a_family_that_waits_is_not_in_sync() {
        let metrics = KubeProxy::default();
        metrics.round(Duration::from_millis(3), |family| family == Family::V6);
        metrics.round(Duration::from_millis(3), |_| true);
        let text = text(&metrics);
        for line in [
            r#"kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2"#,
            r#"kubeproxy_sync_proxy_rules_duration_seconds_bucket{le="0.004",ip_family="IPv6"} 2"#,
            r#"kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1"#,
            r#"kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(text.contains(r#"last_timestamp_seconds{ip_family="IPv4"}"#), "{text}");
        assert!(!text.contains(r#"last_timestamp_seconds{ip_family="IPv6"}"#), "{text}");
    }

    #[test]
    fn what_was_triggered_before_the_start_is_not_ours() {
        let metrics = KubeProxy::default();
        let second = jiff::SignedDuration::from_secs(1);
        let triggers = vec![
            (Family::V4, metrics.started - second),
            (Family::V4, metrics.started + jiff::SignedDuration::from_nanos(1)),
        ];
        metrics.programmed(&Changes { triggers, ..Changes::default() });
        let expected = r#"network_programming_duration_seconds_count{ip_family="IPv4"} 1"#;
        assert!(text(&metrics).contains(expected));
    }
}

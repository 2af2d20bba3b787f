//! Component SLIs (KEP-3466): how often each check of the agent's own health was asked for,
//! and how it went. Beside kube-proxy's own check, `ping`, there is one for each thing that
//! the health server looks at.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::meter::Meter;

/// The metrics at `/metrics/slis`; the start of the process is there, too.
pub const SLIS: [Meter; 2] = [
    Meter::gauge("kubernetes_healthcheck", &["name", "type"], "How a check of health last went: 1 is well"),
    Meter::counter(
        "kubernetes_healthchecks_total",
        &["name", "type", "status"],
        "Checks of health by how they went",
    ),
];

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Counts checks, for whoever makes them.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    last: Family<Labels<2>, Gauge>,
    total: Family<Labels<3>, Counter>,
}

impl Checks {
    /// Notes how a check went: `name` is what was looked at, `kind` who asked (`healthz`, `livez`).
    pub fn observe(&self, name: &'static str, kind: &'static str, ok: bool) {
        self.last.get_or_create(&SLIS[0].with([name, kind])).set(ok.into());
        let status = if ok { "success" } else { "error" };
        self.total.get_or_create(&SLIS[1].with([name, kind, status])).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        SLIS[0].register(registry, self.last.clone());
        SLIS[1].register(registry, self.total.clone());
    }

    pub(super) fn reset(&self) {
        self.last.clear();
        self.total.clear();
    }
}

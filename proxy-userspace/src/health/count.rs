//! Counts the answers about the proxy by their code, and the checks they consist of.

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::{
    body,
    state::{Report, Trouble},
};
use crate::{
    meter::Meter,
    metrics::Checks,
    model,
    serve::{Answer, StatusCode},
};

/// The metrics of this module; names and labels are kube-proxy's.
pub const HEALTH: [Meter; 2] = [
    Meter::counter("kubeproxy_proxy_healthz_total", &["code"], "Answers at /healthz, by HTTP status"),
    Meter::counter("kubeproxy_proxy_livez_total", &["code"], "Answers at /livez, by HTTP status"),
];

type ByCode = Family<[(&'static str, String); 1], Counter>;

#[derive(Debug, Default)]
pub(super) struct Counts {
    healthz: ByCode,
    livez: ByCode,
    checks: Checks,
}

impl Counts {
    pub(super) fn new(checks: Checks) -> Self {
        Self { checks, ..Self::default() }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        for (meter, counter) in HEALTH.iter().zip([&self.healthz, &self.livez]) {
            // A rate needs the zero that comes before the first.
            for code in [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE] {
                drop(counter.get_or_create(&meter.with([code.as_str().to_owned()])));
            }
            meter.register(registry, counter.clone());
        }
    }

    /// The answer at `/healthz`.
    pub(super) fn healthz(&self, report: &Report) -> Answer {
        self.observe("healthz", report);
        self.checks.observe("node", "healthz", report.eligible);
        let lacks_programs = matches!(report.trouble, Some(Trouble::Missing | Trouble::Gone));
        self.checks.observe("programs", "healthz", !lacks_programs);
        counted(&HEALTH[0], &self.healthz, body::healthz(report))
    }

    /// The answer at `/livez`.
    pub(super) fn livez(&self, report: &Report) -> Answer {
        self.observe("livez", report);
        self.checks.observe("programs", "livez", report.trouble != Some(Trouble::Gone));
        counted(&HEALTH[1], &self.livez, body::livez(report))
    }

    fn observe(&self, asked: &'static str, report: &Report) {
        for (family, state) in model::Family::ALL.into_iter().zip(report.families) {
            let name = match family {
                model::Family::V4 => "sync-ipv4",
                model::Family::V6 => "sync-ipv6",
            };
            self.checks.observe(name, asked, state.healthy);
        }
        self.checks.observe("loop", asked, report.trouble != Some(Trouble::Hangs));
    }
}

fn counted(meter: &Meter, counter: &ByCode, answer: Answer) -> Answer {
    counter.get_or_create(&meter.with([answer.status.as_str().to_owned()])).inc();
    answer
}

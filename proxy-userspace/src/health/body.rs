//! The answers, as kube-proxy words them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::state::Report;
use crate::{
    model::{Family, ObjectName},
    serve::{Answer, Content},
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceBody<'a> {
    service: ServiceName<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct ServiceName<'a> {
    namespace: &'a str,
    name: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxyBody {
    last_updated: Timestamp,
    current_time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    status: BTreeMap<&'static str, FamilyBody>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: Timestamp,
    healthy: bool,
}

/// The answer at the health port of a service.
pub(super) fn service(service: &ObjectName, local_endpoints: usize, proxy_healthy: bool) -> Answer {
    let name = ServiceName { namespace: &service.namespace, name: &service.name };
    let body = ServiceBody { service: name, local_endpoints, service_proxy_healthy: proxy_healthy };
    let ok = local_endpoints > 0 && proxy_healthy;
    Answer { ok, content: Content::Json, weight: Some(local_endpoints), body: json(&body) }
}

/// The answer at `/healthz`: is this node fit for new connections?
pub(super) fn healthz(report: &Report) -> Answer {
    proxy(report, report.healthy && report.eligible, Some(report.eligible))
}

/// The answer at `/livez`: would a restart help? What becomes of the node has no say.
pub(super) fn livez(report: &Report) -> Answer {
    proxy(report, report.healthy, None)
}

fn proxy(report: &Report, ok: bool, node_eligible: Option<bool>) -> Answer {
    let status = Family::ALL.into_iter().zip(report.families).map(|(family, known)| {
        let last_updated = known.updated.unwrap_or(NEVER);
        (family.name(), FamilyBody { last_updated, healthy: known.healthy })
    });
    let latest = report.families.iter().filter_map(|family| family.updated).max();
    let body = ProxyBody {
        // While all is well it counts as looked at this moment, for those who watch its age.
        last_updated: if ok { report.now } else { latest.unwrap_or(NEVER) },
        current_time: report.now,
        node_eligible,
        healthy: report.healthy,
        status: status.collect(),
    };
    Answer { ok, content: Content::Json, weight: None, body: json(&body) }
}

/// What kube-proxy writes for no time at all: the first second of the year 1.
const NEVER: Timestamp = Timestamp::constant(-62_135_596_800, 0);

fn json(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("plain structs of plain values always serialize")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::state::FamilyReport;
    use serde_json::{Value, json};

    #[test]
    fn services_are_told_with_their_weight() {
        let check = |local, healthy, ok| {
            let answer = service(&ObjectName::new("ns", "web"), local, healthy);
            assert_eq!((answer.ok, answer.weight), (ok, Some(local)));
            let expected = json!({
                "service": {"namespace": "ns", "name": "web"},
                "localEndpoints": local,
                "serviceProxyHealthy": healthy,
            });
            assert_eq!(serde_json::from_str::<Value>(&answer.body).unwrap(), expected);
        };
        check(2, true, true);
        check(0, true, false);
        check(2, false, false);
    }

    fn report(healthy: [bool; 2], eligible: bool) -> Report {
        let family = |healthy| FamilyReport { healthy, updated: Some(Timestamp::UNIX_EPOCH) };
        let now = Timestamp::constant(90, 0);
        Report { now, healthy: healthy == [true, true], eligible, families: healthy.map(family) }
    }

    #[test]
    fn the_node_counts_for_healthz_alone() {
        let leaving = report([true, true], false);
        assert!(!healthz(&leaving).ok && livez(&leaving).ok);
        let body: Value = serde_json::from_str(&healthz(&leaving).body).unwrap();
        assert_eq!((&body["nodeEligible"], &body["healthy"]), (&json!(false), &json!(true)));
        assert!(!livez(&leaving).body.contains("nodeEligible"));
    }

    #[test]
    fn the_late_family_is_named() {
        let late = report([true, false], true);
        assert!(!healthz(&late).ok && !livez(&late).ok);
        let expected = json!({
            "lastUpdated": "1970-01-01T00:00:00Z",
            "currentTime": "1970-01-01T00:01:30Z",
            "healthy": false,
            "status": {
                "IPv4": {"lastUpdated": "1970-01-01T00:00:00Z", "healthy": true},
                "IPv6": {"lastUpdated": "1970-01-01T00:00:00Z", "healthy": false},
            },
        });
        assert_eq!(serde_json::from_str::<Value>(&livez(&late).body).unwrap(), expected);
    }

    #[test]
    fn healthy_is_as_of_now_and_never_is_the_year_one() {
        let mut fine = report([true, true], true);
        assert!(healthz(&fine).body.starts_with(r#"{"lastUpdated":"1970-01-01T00:01:30Z""#));
        fine.families[1].updated = None;
        assert!(healthz(&fine).body.contains(r#""IPv6":{"lastUpdated":"0001-01-01T00:00:00Z""#));
    }
}

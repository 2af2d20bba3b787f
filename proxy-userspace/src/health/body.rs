//! The answers, as kube-proxy words them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::state::{Report, Trouble};
use crate::{
    model::{Family, ObjectName},
    serve::{Answer, Content, StatusCode},
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
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, FamilyBody>,
    /// Ours: why it is unhealthy, where that is no family's fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
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
    let status = status(local_endpoints > 0 && proxy_healthy);
    Answer { status, content: Content::Json, weight: Some(local_endpoints), body: json(&body).into() }
}

/// The answer at `/healthz`: is this node fit for new connections?
pub(super) fn healthz(report: &Report) -> Answer {
    proxy(report, report.healthy, report.healthy && report.eligible, Some(report.eligible))
}

/// The answer at `/livez`: would a restart help? What becomes of the node has no say.
pub(super) fn livez(report: &Report) -> Answer {
    proxy(report, report.alive, report.alive, None)
}

fn proxy(report: &Report, healthy: bool, ok: bool, node_eligible: Option<bool>) -> Answer {
    let known = Family::ALL.into_iter().zip(report.families);
    // As in kube-proxy there is nothing to say of a family that has written nothing yet; but
    // if it never will, that is no reason for silence.
    let told = known.filter(|(_, known)| known.updated.is_some() || !known.healthy);
    let status = told.map(|(family, known)| {
        let last_updated = known.updated.unwrap_or(NEVER);
        (family.name(), FamilyBody { last_updated, healthy: known.healthy })
    });
    let latest = report.families.iter().filter_map(|family| family.updated).max();
    let body = ProxyBody {
        // While all is well it counts as looked at this moment, for those who watch its age.
        last_updated: if ok { report.now } else { latest.unwrap_or(NEVER) },
        current_time: report.now,
        node_eligible,
        healthy,
        status: status.collect(),
        reason: report.trouble.filter(|_| !healthy).map(Trouble::reason),
    };
    Answer { status: self::status(ok), content: Content::Json, weight: None, body: json(&body).into() }
}

fn status(ok: bool) -> StatusCode {
    if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
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
            assert_eq!((answer.status, answer.weight), (super::status(ok), Some(local)));
            let expected = json!({
                "service": {"namespace": "ns", "name": "web"},
                "localEndpoints": local,
                "serviceProxyHealthy": healthy,
            });
            assert_eq!(serde_json::from_slice::<Value>(&answer.body).unwrap(), expected);
        };
        check(2, true, true);
        check(0, true, false);
        check(2, false, false);
    }

    fn report(healthy: [bool; 2], eligible: bool) -> Report {
        let family = |healthy| FamilyReport { healthy, updated: Some(Timestamp::UNIX_EPOCH) };
        let (now, healthy, families) =
            (Timestamp::constant(90, 0), healthy == [true, true], healthy.map(family));
        Report { now, healthy, alive: healthy, trouble: None, eligible, families }
    }

    #[test]
    fn the_node_counts_for_healthz_alone() {
        let leaving = report([true, true], false);
        assert_eq!(
            (healthz(&leaving).status, livez(&leaving).status),
            (super::status(false), StatusCode::OK)
        );
        let body: Value = serde_json::from_slice(&healthz(&leaving).body).unwrap();
        assert_eq!((&body["nodeEligible"], &body["healthy"]), (&json!(false), &json!(true)));
        assert!(!words(&livez(&leaving)).contains("nodeEligible"));
    }

    #[test]
    fn the_late_family_is_named() {
        let late = report([true, false], true);
        assert_eq!([healthz(&late).status, livez(&late).status], [super::status(false); 2]);
        let expected = json!({
            "lastUpdated": "1970-01-01T00:00:00Z",
            "currentTime": "1970-01-01T00:01:30Z",
            "healthy": false,
            "status": {
                "IPv4": {"lastUpdated": "1970-01-01T00:00:00Z", "healthy": true},
                "IPv6": {"lastUpdated": "1970-01-01T00:00:00Z", "healthy": false},
            },
        });
        assert_eq!(serde_json::from_slice::<Value>(&livez(&late).body).unwrap(), expected);
    }

    fn words(answer: &Answer) -> &str {
        std::str::from_utf8(&answer.body).unwrap()
    }

    #[test]
    fn healthy_is_as_of_now_and_what_never_was_is_told_when_it_is_late() {
        let mut state = report([true, true], true);
        assert!(words(&healthz(&state)).starts_with(r#"{"lastUpdated":"1970-01-01T00:01:30Z""#));
        state.families[1].updated = None;
        assert!(!words(&healthz(&state)).contains("IPv6"));
        state.families[1].healthy = false;
        let never = r#""IPv6":{"lastUpdated":"0001-01-01T00:00:00Z","healthy":false}"#;
        assert!(words(&healthz(&state)).contains(never));
    }

    #[test]
    fn what_is_wrong_is_told_where_it_counts() {
        let with = |trouble, alive| Report {
            healthy: false,
            alive,
            trouble: Some(trouble),
            ..report([true, true], true)
        };
        let hung = with(Trouble::Hangs, false);
        assert!(words(&livez(&hung)).ends_with(r#""reason":"the agent's main loop hangs"}"#));
        let missing = with(Trouble::Missing, true);
        assert_eq!(
            (healthz(&missing).status, livez(&missing).status),
            (super::status(false), StatusCode::OK)
        );
        assert!(words(&healthz(&missing)).contains("reason") && !words(&livez(&missing)).contains("reason"));
        assert!(!words(&livez(&report([true, true], true))).contains("reason"));
    }
}

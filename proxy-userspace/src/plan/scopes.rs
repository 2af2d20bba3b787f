//! From selected endpoints to the backends of each scope: weights, and the slots they need.

use proxy_common::maps::frontends::ClientRule;

use super::{BackendRow, FrontendRow, Scope, Spread, maglev::Use};
use crate::model::{Candidate, Selection, Weights};

/// The backends of a service port.
pub(super) struct Scopes {
    pub(super) cluster: Scope,
    pub(super) local: Scope,
    pub(super) returning: Box<[BackendRow]>,
    pub(super) lingering: Box<[BackendRow]>,
}

/// Gives the selected endpoints to the scopes as the frontends need them.
pub(super) fn scopes(selection: &Selection<'_>, frontends: &[FrontendRow]) -> Scopes {
    let is_local = |rule: ClientRule| rule.has(ClientRule::LOCAL);
    let hashes = |local: bool| {
        frontends.iter().any(|frontend| frontend.hashed && frontend.rules.any(|rule| is_local(rule) == local))
    };
    let returns = frontends.iter().any(|frontend| frontend.rules.any(|rule| rule.has(ClientRule::DSR)));
    let (cluster, mut resting) = scope(&selection.cluster, hashes(false));
    let (local, rest) = scope(&selection.local, hashes(true));
    resting.extend(rest);
    resting.extend(selection.lingering.iter().map(even));
    let answering = selection.cluster.iter().chain(&selection.local).chain(&selection.lingering);
    let returning = answering.filter(|candidate| candidate.local && returns).map(even);
    Scopes { cluster, local, returning: sorted(returning.collect()), lingering: sorted(resting) }
}

/// The backends of a scope, and those that take no new connections. Where all weights are
/// zero nobody would serve: then they say nothing.
fn scope(candidates: &[Candidate<'_>], hashed: bool) -> (Scope, Vec<BackendRow>) {
    let (taking, resting): (Vec<&Candidate<'_>>, Vec<&Candidate<'_>>) =
        candidates.iter().partition(|candidate| candidate.weight != 0);
    let (taking, resting) = if taking.is_empty() { (resting, taking) } else { (taking, resting) };
    let first = taking.first().map_or(Weights::DEFAULT, |candidate| candidate.weight);
    let weighted = taking.iter().any(|candidate| candidate.weight != first);
    let row = |candidate: &&Candidate<'_>| {
        if weighted { BackendRow { weight: candidate.weight, ..even(candidate) } } else { even(candidate) }
    };
    let spread = match (hashed, weighted) {
        (true, _) => Spread::Table(Use::Hash),
        (false, true) => Spread::Table(Use::Chance),
        (false, false) => Spread::Even,
    };
    let scope = Scope { backends: taking.iter().map(row).collect(), spread };
    (scope, resting.into_iter().map(even).collect())
}

fn even(candidate: &Candidate<'_>) -> BackendRow {
    BackendRow { addr: candidate.addr, local: candidate.local, weight: Weights::DEFAULT }
}

fn sorted(mut rows: Vec<BackendRow>) -> Box<[BackendRow]> {
    rows.sort_unstable();
    rows.dedup();
    rows.into()
}

#[cfg(test)]
mod tests {
    use proxy_common::maps::frontends::Kind;

    use super::*;
    use crate::{
        model::{Conditions, Endpoint},
        plan::ClientRules,
    };

    /// Endpoints written as `NUMBER[l]=WEIGHT`: the last octet, on this node or not.
    fn endpoints(text: &str) -> Vec<(Endpoint, bool, u16)> {
        let read = |word: &str| {
            let (number, weight) = word.split_once('=').expect("a weight");
            let digits = number.trim_end_matches('l');
            let endpoint = Endpoint {
                addr: [10, 0, 0, digits.parse().expect("a number")].into(),
                conditions: Conditions::new(None, None, None),
                node: None,
                pod: None,
                zone: None,
                hints: None,
            };
            (endpoint, digits != number, weight.parse().expect("a weight"))
        };
        text.split_whitespace().map(read).collect()
    }

    fn candidates(endpoints: &[(Endpoint, bool, u16)]) -> Vec<Candidate<'_>> {
        let candidate =
            |(endpoint, local, weight): &'_ (Endpoint, bool, u16)| (*local, *weight, endpoint.addr);
        let made = endpoints.iter().map(|one| (candidate(one), &one.0));
        made.map(|((local, weight, addr), endpoint)| Candidate {
            addr: (addr, 80).into(),
            local,
            weight,
            conditions: endpoint.conditions,
            hints: endpoint.hints.as_deref(),
        })
        .collect()
    }

    fn numbers(rows: &[BackendRow]) -> String {
        let last = |row: &BackendRow| row.addr.ip().to_string().replace("10.0.0.", "");
        let weight =
            |row: &BackendRow| if row.weight == 1 { String::new() } else { format!("={}", row.weight) };
        rows.iter().map(|row| last(row) + &weight(row)).collect::<Vec<_>>().join(" ")
    }

    fn frontend(external: u32, hashed: bool) -> FrontendRow {
        let rules =
            ClientRules { external: ClientRule(external), ..ClientRules::all(ClientRule(ClientRule::SNAT)) };
        let kind = Kind::NODE_PORT;
        FrontendRow { addr: None, port: 30080, proto: 6, kind, rules, source_ranges: false, hashed }
    }

    fn check(text: &str, hashed: bool, expected: (&str, Spread, &str)) {
        let endpoints = endpoints(text);
        let selection = Selection { cluster: candidates(&endpoints), ..Selection::default() };
        let scopes = scopes(&selection, &[frontend(ClientRule::SNAT, hashed)]);
        let cluster = numbers(&scopes.cluster.backends);
        let actual = (cluster.as_str(), scopes.cluster.spread, &*numbers(&scopes.lingering));
        assert_eq!(actual, expected, "{text}");
        assert!(scopes.returning.is_empty());
    }

    #[test]
    fn weights_make_tables_and_zero_takes_nobody() {
        let by_weight = Spread::Table(Use::Chance);
        check("1=1 2=1", false, ("1 2", Spread::Even, ""));
        check("1=7 2=7", false, ("1 2", Spread::Even, ""));
        check("1=2 2=3", false, ("1=2 2=3", by_weight, ""));
        check("1=1 2=0", false, ("1", Spread::Even, "2"));
        check("1=2 2=0 3=1", false, ("1=2 3", by_weight, "2"));
        check("1=0 2=0", false, ("1 2", Spread::Even, ""));
        check("1=1 2=1", true, ("1 2", Spread::Table(Use::Hash), ""));
        check("1=2 2=3", true, ("1=2 2=3", Spread::Table(Use::Hash), ""));
        check("", true, ("", Spread::Table(Use::Hash), ""));
    }

    #[test]
    fn zero_is_judged_in_each_scope() {
        let (all, here) = (endpoints("1l=0 2=1"), endpoints("1l=0"));
        let selection =
            Selection { cluster: candidates(&all), local: candidates(&here), ..Selection::default() };
        let scopes = scopes(&selection, &[frontend(ClientRule::LOCAL, false)]);
        assert_eq!(
            (numbers(&scopes.cluster.backends), numbers(&scopes.local.backends)),
            ("2".into(), "1".into())
        );
    }

    #[test]
    fn whoever_answers_here_may_be_sent_to() {
        let (used, draining) = (endpoints("1l=1 2=1 3l=0"), endpoints("4l=1 5=1"));
        let selection = Selection {
            cluster: candidates(&used),
            lingering: candidates(&draining),
            ..Selection::default()
        };
        let scopes = scopes(&selection, &[frontend(ClientRule::DSR, true)]);
        assert_eq!(numbers(&scopes.returning), "1 3 4");
        assert_eq!(numbers(&scopes.lingering), "3 4 5");
        assert_eq!((scopes.cluster.spread, scopes.local.spread), (Spread::Table(Use::Hash), Spread::Even));
    }

    #[test]
    fn only_scopes_that_are_hashed_have_large_tables() {
        let all = endpoints("1l=1 2=1");
        let selection =
            Selection { cluster: candidates(&all), local: candidates(&all[..1]), ..Selection::default() };
        let cluster_ip = frontend(ClientRule::LOCAL, false);
        let scopes = scopes(&selection, &[cluster_ip, frontend(ClientRule::SNAT, true)]);
        assert_eq!((scopes.cluster.spread, scopes.local.spread), (Spread::Table(Use::Hash), Spread::Even));
    }
}

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

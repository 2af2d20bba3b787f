//! Which endpoints of a service port are used, and for which scope.
//!
//! The semantics are kube-proxy's: ready endpoints; without any, those that still serve
//! while they terminate, decided for each scope on its own; topology hints narrow the
//! cluster scope and only if every ready endpoint carries them.

use std::net::SocketAddr;

use super::{Conditions, Hints};

/// An endpoint at one service port.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Address and port.
    pub addr: SocketAddr,
    /// It runs on this node.
    pub local: bool,
    /// Its share of new connections.
    pub weight: u16,
    /// What state it is in.
    pub conditions: Conditions,
    /// Its topology hints, if it has any.
    pub hints: Option<&'a Hints>,
}

impl Candidate<'_> {
    fn is_ready(&self) -> bool {
        self.conditions.ready
    }

    /// Gone as far as the control plane is concerned, but still answering.
    fn is_draining(&self) -> bool {
        self.conditions.serving && self.conditions.terminating
    }

    fn answers(&self) -> bool {
        self.conditions.ready || self.conditions.serving
    }

    /// Of two records for one address the greater counts. The address of a pod that terminates may already be another
    /// pod's: the one that does not terminate has it, wherever it is.
    fn rank(&self) -> (bool, bool, bool, bool) {
        let conditions = self.conditions;
        (!conditions.terminating, conditions.ready, conditions.serving, self.local)
    }
}

/// Where this proxy runs.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The node's name.
    pub node: &'a str,
    /// Its zone, if it has one.
    pub zone: Option<&'a str>,
}

/// The scopes a service port has a use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scopes {
    /// Some policy or short-cut asks for endpoints of the whole cluster.
    pub cluster: bool,
    /// Some policy asks for endpoints of this node only.
    pub local: bool,
}

/// The endpoints in use, each list sorted by address. Scopes without a use are empty.
#[derive(Clone, Debug, Default)]
pub struct Selection<'a> {
    /// For the cluster scope.
    pub cluster: Vec<Candidate<'a>>,
    /// For the local scope.
    pub local: Vec<Candidate<'a>>,
    /// Those that answer without being in either scope.
    pub lingering: Vec<Candidate<'a>>,
    /// There is an endpoint somewhere, if only out of reach for the scopes in use: traffic
    /// without a target is dropped, so that a balancer tries another node, and not refused.
    pub anywhere: bool,
}

/// Chooses among `candidates`, which may be in any order and name an address twice.
pub fn select<'a>(mut candidates: Vec<Candidate<'a>>, scopes: Scopes, place: Place<'_>) -> Selection<'a> {
    candidates.sort_by(|a, b| a.addr.cmp(&b.addr).then(b.rank().cmp(&a.rank())));
    candidates.dedup_by_key(|candidate| candidate.addr);

    let cluster = if scopes.cluster { cluster(&candidates, place) } else { Vec::new() };
    let local = if scopes.local {
        ready_or_draining(candidates.iter().filter(|candidate| candidate.local))
    } else {
        Vec::new()
    };
    let anywhere = candidates.iter().any(|candidate| candidate.is_ready() || candidate.is_draining());
    let used = |list: &[Candidate<'_>], candidate: &Candidate<'_>| {
        list.binary_search_by(|other| other.addr.cmp(&candidate.addr)).is_ok()
    };
    candidates.retain(|c| c.answers() && !used(&cluster, c) && !used(&local, c));
    Selection { cluster, local, lingering: candidates, anywhere }
}

fn cluster<'a>(candidates: &[Candidate<'a>], place: Place<'_>) -> Vec<Candidate<'a>> {
    let topology = Topology::of(candidates, place);
    let wanted = |candidate: &&Candidate<'a>| !candidate.is_ready() || topology.allows(candidate, place);
    ready_or_draining(candidates.iter().filter(wanted))
}

fn ready_or_draining<'a, 'b>(
    candidates: impl Iterator<Item = &'b Candidate<'a>> + Clone,
) -> Vec<Candidate<'a>>
where
    'a: 'b,
{
    let ready: Vec<_> = candidates.clone().filter(|candidate| candidate.is_ready()).copied().collect();
    if !ready.is_empty() {
        return ready;
    }
    candidates.filter(|candidate| candidate.is_draining()).copied().collect()
}

/// How hints narrow the cluster scope on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    Anywhere,
    SameZone,
    SameNode,
}

impl Topology {
    /// Hints count only when every ready endpoint has them and one of them is for here:
    /// anything less means that the control plane is in between two states.
    fn of(candidates: &[Candidate<'_>], place: Place<'_>) -> Self {
        let ready = || candidates.iter().filter(|candidate| candidate.is_ready());
        let all = |hinted: fn(&Hints) -> bool| ready().all(|candidate| candidate.hints.is_some_and(hinted));
        let one = |topology: Topology| ready().any(|candidate| topology.allows(candidate, place));
        if all(|hints| !hints.nodes.is_empty()) && one(Topology::SameNode) {
            return Topology::SameNode;
        }
        if all(|hints| !hints.zones.is_empty()) && one(Topology::SameZone) {
            return Topology::SameZone;
        }
        Topology::Anywhere
    }

    fn allows(self, candidate: &Candidate<'_>, place: Place<'_>) -> bool {
        let hints = candidate.hints;
        match self {
            Topology::Anywhere => true,
            Topology::SameNode => {
                hints.is_some_and(|hints| hints.nodes.iter().any(|node| **node == *place.node))
            }
            Topology::SameZone => {
                hints.is_some_and(|hints| hints.zones.iter().any(|zone| Some(&**zone) == place.zone))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Endpoint;

    const HERE: Place<'static> = Place { node: "here", zone: Some("a") };
    const BOTH: Scopes = Scopes { cluster: true, local: true };

    /// An endpoint written as `N[l][r|d|x][zZONE|nNODE]`: number, local, ready/draining/not ready, hint.
    fn endpoint(text: &str) -> (bool, Endpoint) {
        let digits = text.find(|c: char| !c.is_ascii_digit()).expect("a state");
        let (number, rest) = text.split_at(digits);
        let (local, rest) = rest.strip_prefix('l').map_or((false, rest), |rest| (true, rest));
        let (state, hint) = rest.split_at(1);
        let conditions = match state {
            "r" => Conditions::new(Some(true), None, None),
            "d" => Conditions::new(Some(false), Some(true), Some(true)),
            _ => Conditions::new(Some(false), Some(false), None),
        };
        let hints = match hint.split_at(hint.len().min(1)) {
            ("z", zone) => Some(Hints { zones: [zone.into()].into(), nodes: [].into() }),
            ("n", node) => Some(Hints { zones: [].into(), nodes: [node.into()].into() }),
            _ => None,
        };
        let addr = [10, 0, 0, number.parse().expect("a number")].into();
        (local, Endpoint { addr, conditions, node: None, pod: None, zone: None, hints: hints.map(Box::new) })
    }

    fn check(endpoints: &str, scopes: Scopes, expected: (&str, &str, bool)) {
        let endpoints: Vec<_> = endpoints.split_whitespace().map(endpoint).collect();
        let candidates = endpoints.iter().map(|(local, endpoint)| Candidate {
            addr: (endpoint.addr, 80).into(),
            local: *local,
            weight: 1,
            conditions: endpoint.conditions,
            hints: endpoint.hints.as_deref(),
        });
        let selection = select(candidates.collect(), scopes, HERE);
        let numbers = |list: &[Candidate<'_>]| {
            let last = |c: &Candidate<'_>| c.addr.ip().to_string().rsplit('.').next().map(str::to_owned);
            list.iter().filter_map(last).collect::<Vec<_>>().join(" ")
        };
        let actual = (numbers(&selection.cluster), numbers(&selection.local), selection.anywhere);
        assert_eq!((actual.0.as_str(), actual.1.as_str(), actual.2), expected, "{endpoints:?}");
    }

    #[test]
    fn ready_endpoints_are_used() {
        check("2r 1lr 3x", BOTH, ("1 2", "1", true));
        check("", BOTH, ("", "", false));
        check("1x 2lx", BOTH, ("", "", false));
        check("1r", BOTH, ("1", "", true));
        check("1r 2lr", Scopes { cluster: false, local: true }, ("", "2", true));
        check("1r 2lr", Scopes { cluster: true, local: false }, ("1 2", "", true));
    }

    #[test]
    fn draining_endpoints_help_out_for_each_scope() {
        check("1d 2ld", BOTH, ("1 2", "2", true));
        check("1r 2ld", BOTH, ("1", "2", true));
        check("1lr 2ld", BOTH, ("1", "1", true));
        check("1d", Scopes { cluster: false, local: true }, ("", "", true));
    }

    #[test]
    fn what_still_answers_lingers() {
        let lingering = |text: &str, scopes| {
            let endpoints: Vec<_> = text.split_whitespace().map(endpoint).collect();
            let candidates = endpoints.iter().map(|(local, endpoint)| Candidate {
                addr: (endpoint.addr, 80).into(),
                local: *local,
                weight: 1,
                conditions: endpoint.conditions,
                hints: endpoint.hints.as_deref(),
            });
            select(candidates.collect(), scopes, HERE).lingering.len()
        };
        assert_eq!(lingering("1r 2d 3x", BOTH), 1);
        assert_eq!(lingering("1d 2x", BOTH), 0);
        assert_eq!(lingering("1r 2lr", Scopes { cluster: false, local: true }), 1);
    }

    #[test]
    fn hints_count_if_all_have_them_and_one_is_for_here() {
        check("1rza 2rzb", BOTH, ("1", "", true));
        check("1rza 2r", BOTH, ("1 2", "", true));
        check("1rzb 2rzc", BOTH, ("1 2", "", true));
        check("1rza 2rzb 3x", BOTH, ("1", "", true));
        check("1rnhere 2rnelse", BOTH, ("1", "", true));
        check("1rnelse 2rnelse", BOTH, ("1 2", "", true));
        // The local scope never looks at hints.
        check("1rza 2lrzb", BOTH, ("1", "2", true));
    }

    #[test]
    fn one_address_in_two_slices_counts_once_and_at_its_best() {
        check("1x 1r", BOTH, ("1", "", true));
        check("1r 1lx", BOTH, ("1", "", true));
        check("1r 1lr", BOTH, ("1", "1", true));
    }

    #[test]
    fn an_address_is_that_of_the_pod_that_does_not_terminate() {
        for endpoints in ["1r 1ld", "1ld 1r"] {
            check(endpoints, BOTH, ("1", "", true));
        }
        for endpoints in ["1lr 1d", "1d 1lr"] {
            check(endpoints, BOTH, ("1", "1", true));
        }
        for endpoints in ["1lx 1d", "1d 1lx"] {
            check(endpoints, BOTH, ("", "", false));
        }
    }
}

//! Kinds that the agent can do without, and what becomes of the node when it has to.

use super::super::convert::Kind;

/// What is to be said of a kind that the agent can do without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Optional {
    /// What a role lets list and watch, `RESOURCE.GROUP`.
    pub(super) resource: &'static str,
    /// What stays as an earlier agent left it while nobody knows the objects.
    pub(super) stays: &'static str,
    /// There are API servers without this kind.
    pub(super) is_recent: bool,
}

impl Optional {
    /// Nothing for kinds without which nothing is served.
    pub(super) fn of(kind: Kind) -> Option<Self> {
        let (resource, stays, is_recent) = match kind {
            Kind::Service | Kind::EndpointSlice | Kind::Node => return None,
            Kind::ServiceCidr => {
                ("servicecidrs.networking.k8s.io", "in which ranges unallocated addresses are dropped", true)
            }
            Kind::Pod => ("pods", "which pods have no socket LB", false),
            Kind::Namespace => ("namespaces", "which pods without an own label have no socket LB", false),
        };
        Some(Self { resource, stays, is_recent })
    }
}

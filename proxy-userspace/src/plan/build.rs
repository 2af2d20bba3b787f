//! The rows of one service.

use std::collections::HashSet;

use proxy_common::maps::frontends::Kind;

use super::{BackendRow, FrontendRow, PortPlan, rules::Policies};
use crate::model::{
    Candidate, Config, Face, Family, ObjectName, Service, ServicePort, ServicePortName, State, select,
};

/// All rows of a service: one plan for each of its ports and families, or none if the
/// service does not exist or is not served.
pub fn build(state: &State, name: &ObjectName, config: &Config) -> Vec<PortPlan> {
    let Some(service) = state.service(name) else { return Vec::new() };
    let faces = won_faces(state, service);
    let mut plans = Vec::new();
    for family in Family::ALL.into_iter().filter(|family| service.cluster_ip(*family).is_some()) {
        for (index, port) in service.ports.iter().enumerate() {
            let earlier = &service.ports[..index];
            // A name given twice is one too few to tell the ports apart.
            if !earlier.iter().any(|other| (&other.name, other.protocol) == (&port.name, port.protocol)) {
                plans.push(port_plan(state, config, service, port, family, &faces));
            }
        }
    }
    plans
}

/// The faces that no other service, and no other port of this one, has a better claim to.
fn won_faces<'a>(state: &State, service: &'a Service) -> Vec<Face<'a>> {
    let mut seen = HashSet::new();
    let mut faces = service.faces();
    faces.retain(|face| seen.insert(face.claim) && state.holds(&face.claim, &service.name));
    faces
}

fn port_plan(
    state: &State,
    config: &Config,
    service: &Service,
    port: &ServicePort,
    family: Family,
    faces: &[Face<'_>],
) -> PortPlan {
    let candidates = state.candidates(&service.name, port, family);
    let selection = select(candidates, service.scopes(), state.place());
    let source_ranges = service.source_ranges(family);
    let node_addr = state.node().and_then(|node| node.primary(family));
    let admits_node = node_addr.is_some_and(|addr| source_ranges.iter().any(|net| net.contains(&addr)));
    let policies = Policies {
        internal_local: service.internal_local(),
        external_local: service.external_local(),
        detects_pods: config.detect_local.is_on(family, state.node()),
        masquerade_all: config.masquerade_all,
        any_endpoint: selection.anywhere,
        node_denied: !source_ranges.is_empty() && !admits_node,
    };
    let own = faces.iter().filter(|face| face.claim.family == family && std::ptr::eq(face.port, port));
    let mut frontends: Vec<_> =
        own.map(|face| frontend(face, &policies, !source_ranges.is_empty())).collect();
    frontends.sort_unstable_by_key(|frontend| (frontend.addr, frontend.port, frontend.proto));
    PortPlan {
        name: ServicePortName { service: service.name.clone(), port: port.name.clone() },
        family,
        protocol: port.protocol,
        affinity_secs: service.affinity_secs.unwrap_or(0),
        cluster: selection.cluster.iter().map(backend).collect(),
        local: selection.local.iter().map(backend).collect(),
        lingering: selection.lingering.iter().map(backend).collect(),
        source_ranges: source_ranges.into(),
        frontends: frontends.into(),
    }
}

fn frontend(face: &Face<'_>, policies: &Policies, restricted: bool) -> FrontendRow {
    let claim = face.claim;
    let rules = policies.rules(face.kind);
    let source_ranges = restricted && face.kind == Kind::LOAD_BALANCER;
    FrontendRow {
        addr: claim.addr,
        port: claim.port,
        proto: claim.proto,
        kind: face.kind,
        rules,
        source_ranges,
    }
}

fn backend(candidate: &Candidate<'_>) -> BackendRow {
    BackendRow { addr: candidate.addr, local: candidate.local }
}

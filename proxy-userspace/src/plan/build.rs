//! The rows of one service.

use std::collections::HashSet;

use proxy_common::maps::frontends::{ClientRule, Kind};

use super::{FrontendRow, PortPlan, rules::Policies, scopes::scopes};
use crate::model::{
    Algorithm, Config, Face, Family, ObjectName, Service, ServicePort, ServicePortName, State, select,
};

/// All rows of a service: one plan for each of its ports and families, or none if the
/// service does not exist or is not served.
pub fn build(state: &State, name: &ObjectName, config: &Config) -> Vec<PortPlan> {
    let Some(service) = state.service(name) else { return Vec::new() };
    let mut faces = won_faces(state, service);
    faces.retain(|face| config.external_ips || face.kind != Kind::EXTERNAL_IP);
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
        dsr: service.balancing.mode.unwrap_or(config.load_balancer.mode).returns_directly(port.protocol),
        node_denied: !source_ranges.is_empty() && !admits_node,
    };
    let own = faces.iter().filter(|face| face.claim.family == family && std::ptr::eq(face.port, port));
    let restricted = !source_ranges.is_empty();
    let mut frontends: Vec<_> =
        own.map(|face| frontend(face, &policies, restricted, algorithm(config, service, face))).collect();
    frontends.sort_unstable_by_key(|frontend| (frontend.addr, frontend.port, frontend.proto));
    let scopes = scopes(&selection, &frontends);
    PortPlan {
        name: ServicePortName { service: service.name.clone(), port: port.name.clone() },
        family,
        protocol: port.protocol,
        affinity_secs: service.affinity_secs.unwrap_or(0),
        cluster: scopes.cluster,
        local: scopes.local,
        returning: scopes.returning,
        lingering: scopes.lingering,
        source_ranges: source_ranges.into(),
        frontends: frontends.into(),
    }
}

/// The service's word is for all of its faces, the operator's for those to the outside.
fn algorithm(config: &Config, service: &Service, face: &Face<'_>) -> Algorithm {
    let outside = || match face.kind {
        Kind::CLUSTER_IP => Algorithm::default(),
        _ => config.load_balancer.algorithm,
    };
    service.balancing.algorithm.unwrap_or_else(outside)
}

fn frontend(face: &Face<'_>, policies: &Policies, restricted: bool, algorithm: Algorithm) -> FrontendRow {
    let claim = face.claim;
    let rules = policies.rules(face.kind);
    // A node that has lost its connections finds a backend again only by hashing, and a
    // backend that answers by itself must stay the same.
    let hashed = algorithm == Algorithm::Maglev || rules.any(|rule| rule.has(ClientRule::DSR));
    let source_ranges = restricted && face.kind == Kind::LOAD_BALANCER;
    FrontendRow {
        addr: claim.addr,
        port: claim.port,
        proto: claim.proto,
        kind: face.kind,
        rules,
        source_ranges,
        hashed: hashed && face.kind != Kind::ADDRESS,
    }
}

//! What a load balancer learns that asks a node about a service.

use std::{collections::HashSet, net::IpAddr};

use super::{Family, ObjectName, Service, State};

/// The answer at the health port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The service.
    pub service: ObjectName,
    /// [`Service::created`]: the older of two services keeps a port that both name.
    pub created: i64,
    /// The port of the node.
    pub port: u16,
    /// Ready endpoints on this node for IPv4 and IPv6, where the service has that family.
    pub endpoints: [Option<usize>; 2],
}

impl HealthCheck {
    /// True when the service has an address of the family.
    pub fn has(&self, family: Family) -> bool {
        self.endpoints[family as usize].is_some()
    }

    /// What a client that comes by `family` is told. At a port that is open for both
    /// families a service of one family answers for it.
    pub fn endpoints_for(&self, family: Family) -> usize {
        let others = || self.endpoints.iter().flatten().next().copied();
        self.endpoints[family as usize].or_else(others).unwrap_or_default()
    }
}

impl State {
    /// The health port of a service, if it has one.
    pub fn health_check(&self, name: &ObjectName) -> Option<HealthCheck> {
        let service = self.service(name)?;
        let port = service.health_check_port()?;
        let endpoints =
            Family::ALL.map(|family| service.cluster_ip(family).map(|_| self.ready_here(service, family)));
        Some(HealthCheck { service: name.clone(), created: service.created, port, endpoints })
    }

    /// Addresses count once, at however many ports they answer. Endpoints that drain still
    /// take traffic, but balancers are to look elsewhere.
    fn ready_here(&self, service: &Service, family: Family) -> usize {
        let here = self.name_here();
        let slices = self.slices_of(&service.name).iter();
        let leading = slices.filter(|slice| slice.counts_for(family) && slice.leads());
        let ready = leading
            .flat_map(|slice| slice.all())
            .filter(|endpoint| endpoint.conditions.ready && endpoint.is_on(here));
        ready.map(|endpoint| endpoint.addr).collect::<HashSet<IpAddr>>().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        AddressType, Change, Conditions, Endpoint, EndpointSlice, Protocol, ServiceType, SlicePort,
        TrafficPolicy, service::tests::service,
    };

    /// A slice of endpoints such as `1lr`: last octet, `l` if on this node, ready or draining.
    fn slice(name: &str, endpoints: &str) -> EndpointSlice {
        let endpoint = |text: &str| {
            let local = text.contains('l');
            let number: u8 = text.trim_end_matches(char::is_alphabetic).parse().expect("a number");
            let ready = text.ends_with('r');
            Endpoint {
                addr: [10, 0, 0, number].into(),
                conditions: Conditions::new(Some(ready), Some(true), Some(!ready)),
                node: Some(if local { "here" } else { "there" }.into()),
                pod: None,
                zone: None,
                hints: None,
            }
        };
        EndpointSlice {
            name: ObjectName::new("ns", name),
            service: "web".into(),
            address_type: AddressType::Ip(Family::V4),
            hidden: false,
            ports: [SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: Some(80) }].into(),
            weights: None,
            endpoints: endpoints.split_whitespace().map(endpoint).collect(),
        }
    }

    fn check(slices: &[EndpointSlice], expected: [Option<usize>; 2]) {
        let mut state = State::new("here");
        let mut service = service("web");
        service.kind = ServiceType::LoadBalancer;
        service.external_policy = TrafficPolicy::Local;
        service.health_check_node_port = Some(32_000);
        let name = service.name.clone();
        state.apply(Change::Service(service));
        for slice in slices {
            state.apply(Change::Slice(slice.clone()));
        }
        let check = state.health_check(&name).expect("a health port");
        assert_eq!((check.port, check.endpoints), (32_000, expected));
    }

    #[test]
    fn ready_addresses_on_this_node_count_once() {
        check(&[], [Some(0), None]);
        check(&[slice("a", "1lr 2lr 3r 4ld")], [Some(2), None]);
        check(&[slice("a", "1lr"), slice("b", "1lr 1ld 2lr")], [Some(2), None]);
        check(&[slice("a", "1ld 2r")], [Some(0), None]);
    }

    #[test]
    fn slices_that_lead_nowhere_do_not_count() {
        let hidden = EndpointSlice { hidden: true, ..slice("a", "1lr") };
        let portless = EndpointSlice { ports: [].into(), ..slice("b", "2lr") };
        let other = EndpointSlice { address_type: AddressType::Ip(Family::V6), ..slice("c", "3lr") };
        check(&[hidden, portless, other], [Some(0), None]);
    }

    #[test]
    fn a_service_of_one_family_answers_for_it_by_both() {
        let check = HealthCheck {
            service: ObjectName::new("ns", "web"),
            created: 0,
            port: 1,
            endpoints: [None, Some(3)],
        };
        assert_eq!(Family::ALL.map(|family| check.endpoints_for(family)), [3, 3]);
        let check = HealthCheck { endpoints: [Some(1), Some(3)], ..check };
        assert_eq!(Family::ALL.map(|family| check.endpoints_for(family)), [1, 3]);
    }
}

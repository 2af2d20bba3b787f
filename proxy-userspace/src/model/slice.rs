//! An EndpointSlice and its endpoints.

use std::{net::IpAddr, sync::Arc};

use super::{Family, ObjectName, Protocol, Weights};

/// An EndpointSlice as far as a proxy needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Namespace and name of the slice.
    pub name: ObjectName,
    /// The service it belongs to: label `kubernetes.io/service-name`, same namespace.
    pub service: Arc<str>,
    /// `addressType`.
    pub address_type: AddressType,
    /// The label `service.kubernetes.io/headless` or `service.kubernetes.io/service-proxy-name`
    /// is present: the slice is not for this proxy.
    pub hidden: bool,
    /// `ports`.
    pub ports: Box<[SlicePort]>,
    /// `shunt.dev/weights` of the slice, which counts in place of the service's.
    pub weights: Option<Weights>,
    /// `endpoints`.
    pub endpoints: Box<[Endpoint]>,
}

impl EndpointSlice {
    /// Name of the service it belongs to.
    pub fn service_name(&self) -> ObjectName {
        ObjectName { namespace: self.name.namespace.clone(), name: self.service.clone() }
    }
}

/// `addressType` of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressType {
    /// Addresses of one family.
    Ip(Family),
    /// Host names, which a proxy cannot use.
    Fqdn,
}

/// One entry of a slice's `ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// The name that matches the service port's; empty if it has none.
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The number; a port without one leads nowhere.
    pub port: Option<u16>,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The first address; any others mean nothing.
    pub addr: IpAddr,
    /// What state it is in.
    pub conditions: Conditions,
    /// The node it runs on.
    pub node: Option<Arc<str>>,
    /// The pod behind it.
    pub pod: Option<Arc<str>>,
    /// The zone it runs in.
    pub zone: Option<Arc<str>>,
    /// Topology hints, if it has any.
    pub hints: Option<Box<Hints>>,
}

/// `conditions` after defaulting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Takes new connections.
    pub ready: bool,
    /// Answers, even while terminating.
    pub serving: bool,
    /// Is on its way out.
    pub terminating: bool,
}

impl Conditions {
    /// The conditions as the API gives them: what is unknown is ready, serves and does not terminate.
    pub fn new(ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>) -> Self {
        Self {
            ready: ready.unwrap_or(true),
            serving: serving.unwrap_or(true),
            terminating: terminating.unwrap_or(false),
        }
    }
}

/// `hints` of an endpoint: for whom the control plane meant it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// `forZones`.
    pub zones: Box<[Arc<str>]>,
    /// `forNodes`.
    pub nodes: Box<[Arc<str>]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_conditions_have_defaults() {
        let check = |given: [Option<bool>; 3], expected: [bool; 3]| {
            let c = Conditions::new(given[0], given[1], given[2]);
            assert_eq!([c.ready, c.serving, c.terminating], expected, "{given:?}");
        };
        check([None, None, None], [true, true, false]);
        check([Some(false), None, None], [false, true, false]);
        check([Some(false), None, Some(true)], [false, true, true]);
        check([Some(false), Some(true), Some(true)], [false, true, true]);
        check([Some(true), Some(false), None], [true, false, false]);
    }
}

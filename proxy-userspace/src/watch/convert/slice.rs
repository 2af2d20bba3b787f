//! EndpointSlices.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    super::api::{self, EndpointHints, EndpointPort, EndpointSlice as ApiSlice},
    Convert, Ignored, Kind, Rejected, address, balancing, require_name,
    service::{protocol, require_port, unknown},
};
use crate::model::{AddressType, Change, Conditions, Endpoint, EndpointSlice, Family, Hints, SlicePort};

/// Set by the controller of EndpointSlices: the change of a pod or service that made it write.
const TRIGGERED: &str = "endpoints.kubernetes.io/last-change-trigger-time";

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Label with which slices are not for a proxy, whatever the value.
const HEADLESS: &str = "service.kubernetes.io/headless";

impl Convert for ApiSlice {
    const KIND: Kind = Kind::EndpointSlice;

    fn meta(&self) -> &ObjectMeta {
        &self.metadata.0
    }

    fn convert(&self, ignored: &mut Ignored) -> Result<Change, Rejected> {
        slice(self, ignored).map(Change::Slice)
    }

    /// What cannot be read is passed over, as in kube-proxy: nothing but a metric depends on it.
    fn triggered(&self) -> Option<Timestamp> {
        self.metadata.0.annotations.as_ref()?.get(TRIGGERED)?.parse().ok()
    }
}

fn slice(object: &ApiSlice, ignored: &mut Ignored) -> Result<EndpointSlice, Rejected> {
    let label = |name: &str| object.metadata.0.labels.as_ref().and_then(|l| l.get(name));
    let service = label(SERVICE_NAME).filter(|name| !name.is_empty()).ok_or(Rejected::NoServiceLabel)?;
    let address_type = address_type(object)?;
    Ok(EndpointSlice {
        name: require_name(object.key())?,
        service: service.as_str().into(),
        address_type,
        hidden: label(HEADLESS).is_some(),
        ports: ignored.keep_all(object.ports.iter().enumerate().map(|(i, p)| port(i, p))),
        weights: balancing::of_slice(&object.metadata.0, ignored),
        endpoints: endpoints(object, address_type, ignored),
    })
}

fn address_type(object: &ApiSlice) -> Result<AddressType, Rejected> {
    match object.address_type.as_str() {
        "IPv4" => Ok(AddressType::Ip(Family::V4)),
        "IPv6" => Ok(AddressType::Ip(Family::V6)),
        "FQDN" => Ok(AddressType::Fqdn),
        other => Err(unknown("addressType", other, "IPv4, IPv6 and FQDN")),
    }
}

/// A port without a number stands for all ports, of which a proxy can make nothing.
fn port(i: usize, entry: &EndpointPort) -> Result<SlicePort, Rejected> {
    Ok(SlicePort {
        name: entry.name.as_str().into(),
        protocol: protocol(|| format!("ports[{i}].protocol"), &entry.protocol)?,
        port: entry.port.map(|port| require_port(|| format!("ports[{i}].port"), port)).transpose()?,
    })
}

/// The endpoints; host names cannot be used, and their slices have none.
fn endpoints(object: &ApiSlice, address_type: AddressType, ignored: &mut Ignored) -> Box<[Endpoint]> {
    let AddressType::Ip(family) = address_type else { return Box::default() };
    ignored.keep_all(object.endpoints.iter().enumerate().map(|(i, entry)| endpoint(i, entry, family)))
}

fn endpoint(i: usize, entry: &api::Endpoint, family: Family) -> Result<Endpoint, Rejected> {
    let Some(text) = entry.addresses.first() else {
        return Err(Rejected::NoAddress { field: format!("endpoints[{i}].addresses") });
    };
    let field = || format!("endpoints[{i}].addresses[0]");
    let addr = address::parse_endpoint(field, text)?;
    if Family::of(addr) != family {
        return Err(Rejected::WrongFamily { field: field(), value: addr, family });
    }
    let conditions = &entry.conditions;
    Ok(Endpoint {
        addr,
        conditions: Conditions::new(conditions.ready, conditions.serving, conditions.terminating),
        node: entry.node_name.as_deref().map(Arc::from),
        pod: pod(entry),
        zone: entry.zone.as_deref().map(Arc::from),
        hints: hints(&entry.hints).map(Box::new),
    })
}

fn pod(entry: &api::Endpoint) -> Option<Arc<str>> {
    let target = &entry.target_ref;
    (target.kind == "Pod" && !target.name.is_empty()).then(|| target.name.as_str().into())
}

fn hints(entry: &EndpointHints) -> Option<Hints> {
    let names = |list: &[api::Named]| list.iter().map(|named| named.name.as_str().into()).collect();
    let hints = Hints { zones: names(&entry.for_zones), nodes: names(&entry.for_nodes) };
    (!hints.zones.is_empty() || !hints.nodes.is_empty()).then_some(hints)
}

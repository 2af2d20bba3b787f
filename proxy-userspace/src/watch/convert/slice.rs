//! EndpointSlices.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::discovery::v1::{
        Endpoint as ApiEndpoint, EndpointHints, EndpointPort as ApiPort, EndpointSlice as ApiSlice,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
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
        &self.metadata
    }

    fn convert(&self, ignored: &mut Ignored) -> Result<Change, Rejected> {
        slice(self, ignored).map(Change::Slice)
    }

    /// What cannot be read is passed over, as in kube-proxy: nothing but a metric depends on it.
    fn triggered(&self) -> Option<Timestamp> {
        self.metadata.annotations.as_ref()?.get(TRIGGERED)?.parse().ok()
    }
}

fn slice(object: &ApiSlice, ignored: &mut Ignored) -> Result<EndpointSlice, Rejected> {
    let label = |name: &str| object.metadata.labels.as_ref().and_then(|l| l.get(name));
    let service = label(SERVICE_NAME).filter(|name| !name.is_empty()).ok_or(Rejected::NoServiceLabel)?;
    let address_type = address_type(object)?;
    Ok(EndpointSlice {
        name: require_name(object.key())?,
        service: service.as_str().into(),
        address_type,
        hidden: label(HEADLESS).is_some(),
        ports: ignored.keep_all(object.ports.iter().flatten().enumerate().map(|(i, p)| port(i, p))),
        weights: balancing::of_slice(&object.metadata, ignored),
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
fn port(i: usize, entry: &ApiPort) -> Result<SlicePort, Rejected> {
    Ok(SlicePort {
        name: entry.name.as_deref().unwrap_or_default().into(),
        protocol: protocol(|| format!("ports[{i}].protocol"), entry.protocol.as_deref())?,
        port: entry.port.map(|port| require_port(|| format!("ports[{i}].port"), port)).transpose()?,
    })
}

/// The endpoints; host names cannot be used, and their slices have none.
fn endpoints(object: &ApiSlice, address_type: AddressType, ignored: &mut Ignored) -> Box<[Endpoint]> {
    let AddressType::Ip(family) = address_type else { return Box::default() };
    let list = object.endpoints.as_deref().unwrap_or_default();
    ignored.keep_all(list.iter().enumerate().map(|(i, entry)| endpoint(i, entry, family)))
}

fn endpoint(i: usize, entry: &ApiEndpoint, family: Family) -> Result<Endpoint, Rejected> {
    let Some(text) = entry.addresses.first() else {
        return Err(Rejected::NoAddress { field: format!("endpoints[{i}].addresses") });
    };
    let field = || format!("endpoints[{i}].addresses[0]");
    let addr = address::parse_endpoint(field, text)?;
    if Family::of(addr) != family {
        return Err(Rejected::WrongFamily { field: field(), value: addr, family });
    }
    let conditions = entry.conditions.as_ref();
    Ok(Endpoint {
        addr,
        conditions: Conditions::new(
            conditions.and_then(|c| c.ready),
            conditions.and_then(|c| c.serving),
            conditions.and_then(|c| c.terminating),
        ),
        node: entry.node_name.as_deref().map(Arc::from),
        pod: pod(entry),
        zone: entry.zone.as_deref().map(Arc::from),
        hints: entry.hints.as_ref().and_then(hints).map(Box::new),
    })
}

fn pod(entry: &ApiEndpoint) -> Option<Arc<str>> {
    let target = entry.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"))?;
    target.name.as_deref().map(Arc::from)
}

fn hints(entry: &EndpointHints) -> Option<Hints> {
    let zones: Box<[Arc<str>]> = entry.for_zones.iter().flatten().map(|z| z.name.as_str().into()).collect();
    let nodes: Box<[Arc<str>]> = entry.for_nodes.iter().flatten().map(|n| n.name.as_str().into()).collect();
    (!zones.is_empty() || !nodes.is_empty()).then_some(Hints { zones, nodes })
}

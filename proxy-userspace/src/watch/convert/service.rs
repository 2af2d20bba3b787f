//! Services.

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    super::api::{
        LoadBalancerIngress, Service as ApiService, ServicePort as ApiPort, ServiceSpec, ServiceStatus,
    },
    Convert, Ignored, Kind, Rejected, address, balancing, require_name,
};
use crate::model::{
    Change, Family, Ingress, IpMode, Protocol, Service, ServicePort, ServiceType, TrafficPolicy,
};

const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// Kubernetes' default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const AFFINITY_SECS: i32 = 10_800;

impl Convert for ApiService {
    const KIND: Kind = Kind::Service;

    fn meta(&self) -> &ObjectMeta {
        &self.metadata.0
    }

    fn convert(&self, ignored: &mut Ignored) -> Result<Change, Rejected> {
        service(self, ignored).map(Change::Service)
    }
}

fn service(object: &ApiService, ignored: &mut Ignored) -> Result<Service, Rejected> {
    let spec = object.spec.as_ref().ok_or(Rejected::NoSpec)?;
    let kind = service_type(spec)?;
    let headless = spec.cluster_ip.as_deref() == Some("None");
    let metadata = &object.metadata.0;
    let labels = metadata.labels.as_ref();
    Ok(Service {
        name: require_name(object.key())?,
        uid: metadata.uid.as_deref().unwrap_or_default().into(),
        created: metadata.creation_timestamp.as_ref().map_or(0, |t| t.0.as_second()),
        kind,
        other_proxy: labels.is_some_and(|l| l.contains_key(PROXY_NAME)),
        headless,
        cluster_ips: cluster_ips(spec, ignored)?,
        ip_families: ip_families(spec)?,
        external_ips: external_ips(spec, ignored),
        ingress: ingress(&object.status, ignored),
        ports: ports(spec, headless || kind == ServiceType::ExternalName, ignored)?,
        internal_policy: policy("spec.internalTrafficPolicy", &spec.internal_traffic_policy)?,
        external_policy: policy("spec.externalTrafficPolicy", &spec.external_traffic_policy)?,
        affinity_secs: affinity(spec)?,
        source_ranges: source_ranges(spec)?,
        health_check_node_port: ignored
            .keep(optional_port(|| "spec.healthCheckNodePort".into(), spec.health_check_node_port))
            .flatten(),
        balancing: balancing::of_service(metadata, ignored),
    })
}

fn service_type(spec: &ServiceSpec) -> Result<ServiceType, Rejected> {
    match spec.type_.as_str() {
        "" | "ClusterIP" => Ok(ServiceType::ClusterIp),
        "NodePort" => Ok(ServiceType::NodePort),
        "LoadBalancer" => Ok(ServiceType::LoadBalancer),
        "ExternalName" => Ok(ServiceType::ExternalName),
        other => Err(unknown("spec.type", other, "ClusterIP, NodePort, LoadBalancer and ExternalName")),
    }
}

/// `clusterIPs`, or `clusterIP` alone in objects older than dual stack.
fn cluster_ips(spec: &ServiceSpec, ignored: &mut Ignored) -> Result<Box<[IpAddr]>, Rejected> {
    let (path, texts) = match &spec.cluster_ips[..] {
        [] => ("spec.clusterIP", spec.cluster_ip.as_slice()),
        list => ("spec.clusterIPs", list),
    };
    let texts = texts.iter().enumerate().filter(|(_, text)| !matches!(text.as_str(), "" | "None"));
    ignored.keep_some(texts.map(|(i, text)| address::parse_reachable(|| format!("{path}[{i}]"), text)))
}

fn ip_families(spec: &ServiceSpec) -> Result<Box<[Family]>, Rejected> {
    let names = spec.ip_families.iter();
    let family = |name: &String| match name.as_str() {
        "IPv4" => Ok(Family::V4),
        "IPv6" => Ok(Family::V6),
        other => Err(unknown("spec.ipFamilies", other, "IPv4 and IPv6")),
    };
    names.map(family).collect()
}

fn external_ips(spec: &ServiceSpec, ignored: &mut Ignored) -> Box<[IpAddr]> {
    let texts = spec.external_ips.iter().enumerate();
    ignored
        .keep_all(texts.map(|(i, text)| address::parse_reachable(|| format!("spec.externalIPs[{i}]"), text)))
}

fn ingress(status: &ServiceStatus, ignored: &mut Ignored) -> Box<[Ingress]> {
    ignored
        .keep_all(status.load_balancer.ingress.iter().enumerate().map(|(i, entry)| ingress_entry(i, entry)))
}

fn ingress_entry(i: usize, entry: &LoadBalancerIngress) -> Result<Ingress, Rejected> {
    let field = || format!("status.loadBalancer.ingress[{i}].ip");
    let text = Some(entry.ip.as_str()).filter(|text| !text.is_empty());
    let ip = text.map(|text| address::parse_reachable(field, text)).transpose()?;
    let mode = match entry.ip_mode.as_str() {
        "" | "VIP" => IpMode::Vip,
        "Proxy" => IpMode::Proxy,
        other => {
            let field = format!("status.loadBalancer.ingress[{i}].ipMode");
            return Err(unknown(field, other, "VIP and Proxy"));
        }
    };
    Ok(Ingress { ip, mode })
}

/// Of two ports that cannot be told apart the first counts.
fn ports(
    spec: &ServiceSpec,
    may_be_empty: bool,
    ignored: &mut Ignored,
) -> Result<Box<[ServicePort]>, Rejected> {
    let list = &spec.ports;
    if list.is_empty() && !may_be_empty {
        return Err(Rejected::NoPorts);
    }
    let ports = list.iter().enumerate().map(|(i, entry)| port(i, entry).map(|port| (i, port)));
    let mut kept = Vec::<ServicePort>::with_capacity(list.len());
    for (i, port) in ignored.keep_some(ports)? {
        let told_apart = kept.iter().try_for_each(|earlier| tell_apart(i, earlier, &port));
        kept.extend(ignored.keep(told_apart).map(|()| port));
    }
    Ok(kept.into())
}

fn port(i: usize, entry: &ApiPort) -> Result<ServicePort, Rejected> {
    Ok(ServicePort {
        name: entry.name.as_str().into(),
        protocol: protocol(|| format!("spec.ports[{i}].protocol"), &entry.protocol)?,
        port: require_port(|| format!("spec.ports[{i}].port"), entry.port)?,
        node_port: optional_port(|| format!("spec.ports[{i}].nodePort"), entry.node_port)?,
    })
}

/// Slices are matched by name, packets by number, each together with the protocol: both must be unique.
fn tell_apart(i: usize, earlier: &ServicePort, port: &ServicePort) -> Result<(), Rejected> {
    if earlier.protocol != port.protocol {
        return Ok(());
    }
    let duplicate = |field: &str, value: String| {
        Err(Rejected::Duplicate {
            field: format!("spec.ports[{i}].{field}"),
            value: format!("{value}/{}", port.protocol),
        })
    };
    if earlier.name == port.name {
        return duplicate("name", format!("{:?}", port.name));
    }
    if earlier.port == port.port {
        return duplicate("port", port.port.to_string());
    }
    match port.node_port {
        Some(number) if earlier.node_port == port.node_port => duplicate("nodePort", number.to_string()),
        _ => Ok(()),
    }
}

fn policy(field: &str, text: &str) -> Result<TrafficPolicy, Rejected> {
    match text {
        "" | "Cluster" => Ok(TrafficPolicy::Cluster),
        "Local" => Ok(TrafficPolicy::Local),
        other => Err(unknown(field, other, "Cluster and Local")),
    }
}

fn affinity(spec: &ServiceSpec) -> Result<Option<u32>, Rejected> {
    match spec.session_affinity.as_str() {
        "" | "None" => return Ok(None),
        "ClientIP" => (),
        other => return Err(unknown("spec.sessionAffinity", other, "None and ClientIP")),
    }
    let secs = spec.session_affinity_config.client_ip.timeout_seconds.unwrap_or(AFFINITY_SECS);
    let (min, max) = (1, 86_400);
    match u32::try_from(secs) {
        Ok(positive) if (min..=max).contains(&secs) => Ok(Some(positive)),
        _ => {
            let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds".into();
            Err(Rejected::OutOfRange { field, value: secs, min, max })
        }
    }
}

/// All of them or none: a family without any is open to everybody.
fn source_ranges(spec: &ServiceSpec) -> Result<Box<[ipnet::IpNet]>, Rejected> {
    let texts = spec.load_balancer_source_ranges.iter().enumerate();
    texts
        .map(|(i, text)| address::parse_net(|| format!("spec.loadBalancerSourceRanges[{i}]"), text))
        .collect()
}

/// A protocol, TCP when it is not said.
pub(super) fn protocol(field: impl Fn() -> String, text: &str) -> Result<Protocol, Rejected> {
    match text {
        "" => Ok(Protocol::Tcp),
        name => Protocol::from_name(name).ok_or_else(|| unknown(field(), name, "TCP, UDP and SCTP")),
    }
}

/// A port number of 1 to 65535.
pub(super) fn require_port(field: impl Fn() -> String, value: i32) -> Result<u16, Rejected> {
    match u16::try_from(value) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(Rejected::NotAPort { field: field(), value }),
    }
}

/// A port number that 0 leaves unset.
fn optional_port(field: impl Fn() -> String, value: i32) -> Result<Option<u16>, Rejected> {
    Some(value).filter(|port| *port != 0).map(|port| require_port(field, port)).transpose()
}

pub(super) fn unknown(field: impl Into<String>, value: &str, known: &'static str) -> Rejected {
    Rejected::UnknownValue { field: field.into(), value: value.to_owned(), known }
}

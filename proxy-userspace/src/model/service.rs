//! A Service, and the rules that read nothing else: is it served, in which families,
//! on which faces, under which policy.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{Family, ObjectName, Protocol};

/// A Service as far as a proxy needs it.
///
/// `publishNotReadyAddresses` and `trafficDistribution` are absent on purpose: the
/// control plane turns them into conditions and hints of the endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub name: ObjectName,
    /// `metadata.creationTimestamp` in seconds since the epoch, 0 when unknown. The older
    /// of two services keeps an address that both claim.
    pub created: i64,
    /// `spec.type`.
    pub kind: ServiceType,
    /// The label `service.kubernetes.io/service-proxy-name` is present, with any value.
    pub other_proxy: bool,
    /// `spec.clusterIP` is `None`.
    pub headless: bool,
    /// `spec.clusterIPs` (or `spec.clusterIP` alone), in their order, without `None`.
    pub cluster_ips: Box<[IpAddr]>,
    /// `spec.ipFamilies`; empty when the field is, then the cluster IPs decide.
    pub ip_families: Box<[Family]>,
    /// `spec.externalIPs`.
    pub external_ips: Box<[IpAddr]>,
    /// `status.loadBalancer.ingress`.
    pub ingress: Box<[Ingress]>,
    /// `spec.ports`.
    pub ports: Box<[ServicePort]>,
    /// `spec.internalTrafficPolicy`.
    pub internal_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy` as written; [`Service::external_local`] says whether it counts.
    pub external_policy: TrafficPolicy,
    /// Seconds of `spec.sessionAffinityConfig.clientIP`, if `sessionAffinity` is `ClientIP`.
    pub affinity_secs: Option<u32>,
    /// `spec.loadBalancerSourceRanges`.
    pub source_ranges: Box<[IpNet]>,
    /// `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<u16>,
}

/// `spec.type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// Reachable inside the cluster.
    #[default]
    ClusterIp,
    /// Also on a port of every node.
    NodePort,
    /// Also behind an external load balancer.
    LoadBalancer,
    /// A DNS alias.
    ExternalName,
}

/// Which endpoints traffic may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TrafficPolicy {
    /// Those of the whole cluster.
    #[default]
    Cluster,
    /// Those on this node.
    Local,
}

/// One entry of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// The name, empty if it has none.
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port on cluster, external and load-balancer addresses.
    pub port: u16,
    /// The port on node addresses.
    pub node_port: Option<u16>,
}

/// One entry of `status.loadBalancer.ingress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ingress {
    /// The address; absent when only a hostname is given.
    pub ip: Option<IpAddr>,
    /// How the load balancer delivers.
    pub mode: IpMode,
}

/// `ipMode` of an ingress (KEP-1860).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpMode {
    /// Packets arrive with the load balancer's address as destination.
    #[default]
    Vip,
    /// Packets arrive for the node or pod, and must go out to the load balancer first.
    Proxy,
}

/// Why a service is none of this proxy's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotServed {
    /// A DNS alias has no address.
    #[error("its type is ExternalName")]
    ExternalName,
    /// DNS answers with the endpoints themselves.
    #[error("it is headless")]
    Headless,
    /// The control plane has not given it an address.
    #[error("it has no cluster IP")]
    NoClusterIp,
    /// Another proxy has been asked for.
    #[error("the label service.kubernetes.io/service-proxy-name gives it to another proxy")]
    OtherProxy,
}

//! A Service, and the rules that read nothing else: is it served, in which families,
//! on which faces, under which policy.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{Balancing, Family, ObjectName, Protocol, Scopes};

/// A Service as far as a proxy needs it.
///
/// `publishNotReadyAddresses` and `trafficDistribution` are absent on purpose: the
/// control plane turns them into conditions and hints of the endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub name: ObjectName,
    /// `metadata.uid`; empty when unknown.
    pub uid: Arc<str>,
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
    /// Annotations of the load balancer.
    pub balancing: Balancing,
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

impl Service {
    /// Says why the service has no rows at all, if that is so.
    ///
    /// The label `service.kubernetes.io/headless` has no say here: it works through the
    /// slices, to which the control plane copies it.
    pub fn served(&self) -> Result<(), NotServed> {
        if self.other_proxy {
            Err(NotServed::OtherProxy)
        } else if self.kind == ServiceType::ExternalName {
            Err(NotServed::ExternalName)
        } else if self.headless {
            Err(NotServed::Headless)
        } else if self.cluster_ips.is_empty() {
            Err(NotServed::NoClusterIp)
        } else {
            Ok(())
        }
    }

    /// The source ranges of a family, sorted and without duplicates. None means that all
    /// sources may use the load-balancer addresses.
    pub fn source_ranges(&self, family: Family) -> Vec<IpNet> {
        let own = self.source_ranges.iter().filter(|net| Family::of_net(net) == family);
        let mut ranges: Vec<_> = own.map(IpNet::trunc).collect();
        ranges.sort_unstable();
        ranges.dedup();
        ranges
    }

    /// The cluster IP of a family; without one the service has no face of that family,
    /// whatever other addresses are listed.
    pub fn cluster_ip(&self, family: Family) -> Option<IpAddr> {
        self.served().ok()?;
        let listed = self.ip_families.is_empty() || self.ip_families.contains(&family);
        let usable = |addr: &IpAddr| Family::of(*addr) == family && !addr.is_unspecified();
        self.cluster_ips.iter().copied().find(usable).filter(|_| listed)
    }

    /// The addresses at which a load balancer hands packets over unchanged. One with
    /// `ipMode: Proxy` has to see the packet itself, and a host name is no address.
    pub fn load_balancer_ips(&self) -> impl Iterator<Item = IpAddr> {
        self.ingress.iter().filter(|ingress| ingress.mode == IpMode::Vip).filter_map(|ingress| ingress.ip)
    }

    /// True when clients outside the cluster are meant to reach it.
    pub fn is_external(&self) -> bool {
        match self.kind {
            ServiceType::NodePort | ServiceType::LoadBalancer => true,
            ServiceType::ClusterIp => !self.external_ips.is_empty(),
            ServiceType::ExternalName => false,
        }
    }

    /// True when outside clients reach endpoints of this node only. A policy left over
    /// from a type the service no longer has counts for nothing.
    pub fn external_local(&self) -> bool {
        self.is_external() && self.external_policy == TrafficPolicy::Local
    }

    /// The port at which load balancers ask whether this node has endpoints. One left over
    /// from a type or policy the service no longer has counts for nothing.
    pub fn health_check_port(&self) -> Option<u16> {
        let asked = self.kind == ServiceType::LoadBalancer && self.external_local();
        self.health_check_node_port.filter(|_| asked && self.served().is_ok())
    }

    /// True when clients of the cluster IP reach endpoints of this node only.
    pub fn internal_local(&self) -> bool {
        self.internal_policy == TrafficPolicy::Local
    }

    /// The scopes that its policies have a use for. The cluster scope serves external
    /// services even under policy Local: pods and the node itself are short-cut to it.
    pub fn scopes(&self) -> Scopes {
        Scopes {
            cluster: !self.internal_local() || self.is_external(),
            local: self.internal_local() || self.external_local(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A service on 172.30.0.1:80/TCP.
    pub(crate) fn service(name: &str) -> Service {
        let port = ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, node_port: None };
        Service {
            name: ObjectName::new("ns", name),
            uid: "".into(),
            created: 0,
            kind: ServiceType::ClusterIp,
            other_proxy: false,
            headless: false,
            cluster_ips: [[172, 30, 0, 1].into()].into(),
            ip_families: [].into(),
            external_ips: [].into(),
            ingress: [].into(),
            ports: [port].into(),
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            affinity_secs: None,
            source_ranges: [].into(),
            health_check_node_port: None,
            balancing: Balancing::default(),
        }
    }

    #[test]
    fn some_services_are_not_served() {
        let check = |change: fn(&mut Service), expected| {
            let mut service = service("web");
            change(&mut service);
            assert_eq!(service.served(), expected);
            assert_eq!(service.cluster_ip(Family::V4).is_some(), expected.is_ok());
        };
        check(|_| (), Ok(()));
        check(|s| s.other_proxy = true, Err(NotServed::OtherProxy));
        check(|s| s.kind = ServiceType::ExternalName, Err(NotServed::ExternalName));
        check(|s| s.headless = true, Err(NotServed::Headless));
        check(|s| s.cluster_ips = [].into(), Err(NotServed::NoClusterIp));
    }

    #[test]
    fn families_restrict_cluster_ips() {
        let mut service = service("web");
        service.cluster_ips = [[172, 30, 0, 1].into(), "fd00::1".parse().expect("an address")].into();
        assert!(service.cluster_ip(Family::V6).is_some());
        service.ip_families = [Family::V4].into();
        assert!(service.cluster_ip(Family::V6).is_none());
        assert!(service.cluster_ip(Family::V4).is_some());
    }

    #[test]
    fn external_policy_needs_an_external_face() {
        let check = |kind, external_ips: &[IpAddr], expected| {
            let mut service = service("web");
            service.external_policy = TrafficPolicy::Local;
            service.kind = kind;
            service.external_ips = external_ips.into();
            assert_eq!(service.external_local(), expected, "{kind:?} {external_ips:?}");
        };
        check(ServiceType::ClusterIp, &[], false);
        check(ServiceType::ClusterIp, &[[192, 0, 2, 1].into()], true);
        check(ServiceType::NodePort, &[], true);
        check(ServiceType::LoadBalancer, &[], true);
    }

    #[test]
    fn balancers_ask_only_where_the_policy_is_local() {
        let check = |change: fn(&mut Service), expected| {
            let mut service = service("web");
            service.kind = ServiceType::LoadBalancer;
            service.external_policy = TrafficPolicy::Local;
            service.health_check_node_port = Some(32_000);
            change(&mut service);
            assert_eq!(service.health_check_port(), expected);
        };
        check(|_| (), Some(32_000));
        check(|s| s.health_check_node_port = None, None);
        check(|s| s.external_policy = TrafficPolicy::Cluster, None);
        check(|s| s.kind = ServiceType::NodePort, None);
        check(|s| s.other_proxy = true, None);
    }

    #[test]
    fn scopes_follow_the_policies() {
        let mut service = service("web");
        assert_eq!(service.scopes(), Scopes { cluster: true, local: false });
        service.internal_policy = TrafficPolicy::Local;
        assert_eq!(service.scopes(), Scopes { cluster: false, local: true });
        service.kind = ServiceType::NodePort;
        assert_eq!(service.scopes(), Scopes { cluster: true, local: true });
        service.internal_policy = TrafficPolicy::Cluster;
        service.external_policy = TrafficPolicy::Local;
        assert_eq!(service.scopes(), Scopes { cluster: true, local: true });
    }
}

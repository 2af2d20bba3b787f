//! The addresses a service answers on.

use std::{fmt, net::IpAddr};

use proxy_common::{maps::frontends::Kind, proto};

use super::{Family, Service, ServicePort};

/// One address a service answers on.
#[derive(Clone, Copy, Debug)]
pub struct Face<'a> {
    /// What it takes; no two services may have the same.
    pub claim: Claim,
    /// Which kind of address it is.
    pub kind: Kind,
    /// The service port it leads to. For [`Kind::ADDRESS`] the first one.
    pub port: &'a ServicePort,
}

/// An address, port and protocol that only one service can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// The family; it tells NodePorts of both families apart.
    pub family: Family,
    /// The address; none is every address of the node that takes NodePorts.
    pub addr: Option<IpAddr>,
    /// The port; 0 for the address as a whole.
    pub port: u16,
    /// The protocol number; 0 for the address as a whole.
    pub proto: u8,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.addr {
            Some(addr) if self.port == 0 => return write!(f, "address {addr}"),
            Some(IpAddr::V6(addr)) => write!(f, "[{addr}]:{}", self.port)?,
            Some(IpAddr::V4(addr)) => write!(f, "{addr}:{}", self.port)?,
            None => write!(f, "{} NodePort {}", self.family, self.port)?,
        }
        write!(f, "/{}", proto::name(self.proto).unwrap_or("unknown"))
    }
}

impl Service {
    /// Every address the service answers on, in both families. A claim may occur twice when
    /// the spec is at odds with itself; the first one counts.
    pub fn faces(&self) -> Vec<Face<'_>> {
        let mut faces = Vec::new();
        for family in Family::ALL {
            if let Some(cluster_ip) = self.cluster_ip(family) {
                self.faces_of(family, cluster_ip, &mut faces);
            }
        }
        faces
    }

    fn faces_of<'a>(&'a self, family: Family, cluster_ip: IpAddr, faces: &mut Vec<Face<'a>>) {
        let face = |kind, addr, number, port: &'a ServicePort| {
            let proto = if kind == Kind::ADDRESS { 0 } else { port.protocol.number() };
            Face { claim: Claim { family, addr, port: number, proto }, kind, port }
        };
        if let Some(first) = self.ports.first() {
            faces.push(face(Kind::ADDRESS, Some(cluster_ip), 0, first));
        }
        for port in &self.ports {
            faces.push(face(Kind::CLUSTER_IP, Some(cluster_ip), port.port, port));
            // An address of both kinds is the load balancer's, whose source ranges hold.
            for addr in usable(self.load_balancer_ips(), family) {
                faces.push(face(Kind::LOAD_BALANCER, Some(addr), port.port, port));
            }
            for addr in usable(self.external_ips.iter().copied(), family) {
                faces.push(face(Kind::EXTERNAL_IP, Some(addr), port.port, port));
            }
            if let Some(number) = port.node_port {
                faces.push(face(Kind::NODE_PORT, None, number, port));
            }
        }
    }
}

/// The addresses of a family that a packet on a wire can carry as its destination. The
/// unspecified address would even be taken for a NodePort.
fn usable(addrs: impl Iterator<Item = IpAddr>, family: Family) -> impl Iterator<Item = IpAddr> {
    addrs.filter(move |addr| {
        Family::of(*addr) == family && !addr.is_unspecified() && !addr.is_loopback() && !addr.is_multicast()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::service::tests::service;
    use crate::model::{Ingress, IpMode};

    fn faces(service: &Service) -> Vec<String> {
        let mut all: Vec<_> =
            service.faces().iter().map(|face| format!("{} {}", face.kind.name(), face.claim)).collect();
        all.sort();
        all
    }

    #[test]
    fn every_face_of_both_families() {
        let mut service = service("web");
        let addr = |text: &str| text.parse::<IpAddr>().expect("an address");
        service.cluster_ips = [addr("172.30.0.1"), addr("fd00::1")].into();
        service.external_ips = [addr("192.0.2.1"), addr("0.0.0.0"), addr("127.0.0.1")].into();
        service.ingress = [
            Ingress { ip: Some(addr("198.51.100.1")), mode: IpMode::Vip },
            Ingress { ip: Some(addr("198.51.100.2")), mode: IpMode::Proxy },
            Ingress { ip: None, mode: IpMode::Vip },
        ]
        .into();
        service.ports[0].node_port = Some(30080);
        assert_eq!(
            faces(&service),
            [
                "Address address 172.30.0.1",
                "Address address fd00::1",
                "ClusterIP 172.30.0.1:80/TCP",
                "ClusterIP [fd00::1]:80/TCP",
                "ExternalIP 192.0.2.1:80/TCP",
                "LoadBalancer 198.51.100.1:80/TCP",
                "NodePort IPv4 NodePort 30080/TCP",
                "NodePort IPv6 NodePort 30080/TCP",
            ]
        );
    }

    #[test]
    fn an_address_of_both_kinds_is_the_load_balancers() {
        let mut service = service("web");
        let addr: IpAddr = [192, 0, 2, 1].into();
        service.external_ips = [addr].into();
        service.ingress = [Ingress { ip: Some(addr), mode: IpMode::Vip }].into();
        let kinds: Vec<_> = service
            .faces()
            .iter()
            .filter(|face| face.claim.addr == Some(addr))
            .map(|face| face.kind)
            .collect();
        assert_eq!(kinds, [Kind::LOAD_BALANCER, Kind::EXTERNAL_IP], "the first one counts");
    }

    #[test]
    fn a_family_without_cluster_ip_has_no_faces() {
        let mut service = service("web");
        service.external_ips = ["2001:db8::1".parse().expect("an address")].into();
        assert_eq!(faces(&service), ["Address address 172.30.0.1", "ClusterIP 172.30.0.1:80/TCP"]);
    }
}

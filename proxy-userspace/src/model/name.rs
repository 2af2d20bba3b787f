//! The words every other module uses: names of objects, protocols, address families.

use std::{fmt, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use proxy_common::proto;

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl ObjectName {
    /// The name of an object of a namespace.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One port of a service, as people and metrics name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePortName {
    /// The service.
    pub service: ObjectName,
    /// Name of the port; empty for the only port of a service.
    pub port: Arc<str>,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.port {
            "" => self.service.fmt(f),
            port => write!(f, "{}:{port}", self.service),
        }
    }
}

/// A transport protocol of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
    /// RFC 9260.
    Sctp,
}

impl Protocol {
    /// The IANA number.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => proto::TCP,
            Protocol::Udp => proto::UDP,
            Protocol::Sctp => proto::SCTP,
        }
    }

    /// The protocol that Kubernetes writes as `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| p.name() == name)
    }

    /// The name as Kubernetes writes it.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(addr: IpAddr) -> Self {
        if addr.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The family of a prefix.
    pub fn of_net(net: &IpNet) -> Self {
        Self::of(net.addr())
    }

    /// The name as `spec.ipFamilies` writes it.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_in_kubectl() {
        let service = ObjectName::new("default", "web");
        let named = ServicePortName { service: service.clone(), port: "http".into() };
        let unnamed = ServicePortName { service, port: "".into() };
        assert_eq!(named.to_string(), "default/web:http");
        assert_eq!(unnamed.to_string(), "default/web");
    }

    #[test]
    fn protocols_are_named_in_upper_case() {
        assert_eq!(Protocol::from_name("UDP"), Some(Protocol::Udp));
        assert_eq!(Protocol::from_name("udp"), None);
    }
}

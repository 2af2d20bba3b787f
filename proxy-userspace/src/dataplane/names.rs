//! What ids stand for, for people and metrics.

use std::net::SocketAddr;

use super::{MapAddr, Reconciler, family::FamilyTable};
use crate::model::{Family, Protocol, ServicePortName};

impl Reconciler {
    /// The service port that has this id.
    pub fn service_port(&self, id: u32) -> Option<(&ServicePortName, Protocol)> {
        self.services.name(id)
    }

    /// Whether a service port has an id.
    pub fn has_service_port(&self, name: &ServicePortName, protocol: Protocol) -> bool {
        self.services.has(name, protocol)
    }

    /// The backend that has this id.
    pub fn backend(&self, family: Family, id: u32) -> Option<SocketAddr> {
        match family {
            Family::V4 => self.v4.backend(id),
            Family::V6 => self.v6.backend(id),
        }
    }
}

impl<A: MapAddr> FamilyTable<A> {
    fn backend(&self, id: u32) -> Option<SocketAddr> {
        self.backends.row(id).map(|row| SocketAddr::new(row.addr.into(), row.port))
    }
}

//! This node and the cluster's service ranges.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

use super::{Family, Taint};

/// A Node as far as a proxy needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Name of the object.
    pub name: Arc<str>,
    /// `status.addresses` of type InternalIP, then those of type ExternalIP, in their order.
    pub addresses: Box<[IpAddr]>,
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Box<[IpNet]>,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// The cluster autoscaler has marked it for deletion.
    pub condemned: bool,
    /// `spec.taints`.
    pub taints: Box<[Taint]>,
}

impl Node {
    /// True while new connections from outside may be sent here, as far as its object tells.
    pub fn is_staying(&self) -> bool {
        !self.deleting && !self.condemned
    }

    /// The address other nodes know this one by: the first of its family.
    pub fn primary(&self, family: Family) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|addr| Family::of(*addr) == family)
    }

    /// Makes an address the primary one of its family.
    pub fn prefer(&mut self, addr: IpAddr) {
        let others = self.addresses.iter().copied().filter(|other| *other != addr);
        self.addresses = std::iter::once(addr).chain(others).collect();
    }

    /// The first pod range of a family.
    pub fn pod_cidr(&self, family: Family) -> Option<IpNet> {
        self.pod_cidrs.iter().copied().find(|net| Family::of_net(net) == family)
    }
}

/// A ServiceCIDR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    /// Name of the object.
    pub name: Arc<str>,
    /// `spec.cidrs`.
    pub ranges: Box<[IpNet]>,
}

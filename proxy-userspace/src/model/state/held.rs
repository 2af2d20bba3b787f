//! Slices as the state holds them. A cluster has many endpoints and changes few of them at a
//! time, so they are packed: a few allocations for a slice, and none for an endpoint.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use super::names::{NameId, Names};
use crate::model::{
    AddressType, Conditions, EndpointSlice, Family, Hints, ObjectName, Protocol, Weighed, Weights,
};

/// A slice whose endpoints a proxy can use. Endpoints of another family than the slice's are
/// left out, for nobody asks for them.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::model) struct HeldSlice {
    pub(super) name: ObjectName,
    address_type: AddressType,
    hidden: bool,
    ports: Box<[HeldPort]>,
    weights: Option<Box<Weights>>,
    endpoints: Endpoints,
    pods: PodNames,
    /// Of each endpoint, or none at all.
    hints: Box<[Option<Box<Hints>>]>,
}

#[derive(Debug, PartialEq, Eq)]
struct HeldPort {
    name: NameId,
    number: Option<u16>,
    protocol: Protocol,
}

#[derive(Debug, PartialEq, Eq)]
enum Endpoints {
    V4(Box<[HeldEndpoint<Ipv4Addr>]>),
    V6(Box<[HeldEndpoint<Ipv6Addr>]>),
    /// Host names.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldEndpoint<A> {
    addr: A,
    node: Option<NameId>,
    zone: Option<NameId>,
    conditions: Conditions,
}

/// Names of pods, of which those of one slice mostly begin alike.
#[derive(Debug, Default, PartialEq, Eq)]
struct PodNames {
    prefix_len: usize,
    /// The prefix, then what follows it of each.
    text: Box<str>,
    /// Where the text of each endpoint ends; before the end of the prefix if it has no pod.
    ends: Box<[u32]>,
}

/// An endpoint of a slice.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct EndpointView<'a> {
    index: usize,
    slice: &'a HeldSlice,
    pub(in crate::model) addr: IpAddr,
    pub(in crate::model) conditions: Conditions,
    node: Option<NameId>,
    zone: Option<NameId>,
}

impl HeldSlice {
    /// Packs a slice. Its names are known to `names` until [`HeldSlice::release`].
    pub(super) fn new(slice: EndpointSlice, names: &mut Names) -> Self {
        let EndpointSlice { name, address_type, hidden, ports, weights, endpoints, .. } = slice;
        let port = |port: &crate::model::SlicePort| HeldPort {
            name: names.acquire(&port.name),
            number: port.port,
            protocol: port.protocol,
        };
        let ports = ports.iter().map(port).collect();
        let of = |family| endpoints.iter().filter(move |endpoint| Family::of(endpoint.addr) == family);
        let family = match address_type {
            AddressType::Ip(family) => family,
            AddressType::Fqdn => {
                let (pods, hints) = (PodNames::default(), Box::default());
                let weights = weights.map(Box::new);
                return Self {
                    name,
                    address_type,
                    hidden,
                    ports,
                    weights,
                    endpoints: Endpoints::None,
                    pods,
                    hints,
                };
            }
        };
        let pods = PodNames::new(&of(family).map(|endpoint| endpoint.pod.as_deref()).collect::<Vec<_>>());
        let hinted = of(family).any(|endpoint| endpoint.hints.is_some());
        let hints = of(family).filter(|_| hinted).map(|endpoint| endpoint.hints.clone()).collect();
        let mut id = |name: &Option<Arc<str>>| name.as_ref().map(|name| names.acquire(name));
        let mut v4 = Vec::new();
        let mut v6 = Vec::new();
        for endpoint in of(family) {
            let (node, zone, conditions) = (id(&endpoint.node), id(&endpoint.zone), endpoint.conditions);
            match endpoint.addr {
                IpAddr::V4(addr) => v4.push(HeldEndpoint { addr, node, zone, conditions }),
                IpAddr::V6(addr) => v6.push(HeldEndpoint { addr, node, zone, conditions }),
            }
        }
        let endpoints = match family {
            Family::V4 => Endpoints::V4(v4.into()),
            Family::V6 => Endpoints::V6(v6.into()),
        };
        let weights = weights.map(Box::new);
        Self { name, address_type, hidden, ports, weights, endpoints, pods, hints }
    }

    /// Gives back its names, when it is no longer held.
    pub(super) fn release(self, names: &mut Names) {
        self.ports.iter().for_each(|port| names.release(port.name));
        for endpoint in self.all() {
            endpoint.node.into_iter().chain(endpoint.zone).for_each(|name| names.release(name));
        }
    }

    /// True when it has anything to say about endpoints of this family.
    pub(in crate::model) fn counts_for(&self, family: Family) -> bool {
        !self.hidden && self.address_type == AddressType::Ip(family)
    }

    /// True when a port of it leads anywhere.
    pub(in crate::model) fn leads(&self) -> bool {
        self.ports.iter().any(|port| port.number.is_some_and(|number| number != 0))
    }

    /// The numbers under which it has a port.
    pub(super) fn numbers(&self, name: NameId, protocol: Protocol) -> impl Iterator<Item = u16> {
        let own = self.ports.iter().filter(move |port| port.name == name && port.protocol == protocol);
        own.filter_map(|port| port.number).filter(|number| *number != 0)
    }

    /// Weights that count in place of the service's.
    pub(super) fn weights(&self) -> Option<&Weights> {
        self.weights.as_deref()
    }

    /// True when an endpoint has topology hints.
    pub(super) fn is_hinted(&self) -> bool {
        !self.hints.is_empty()
    }

    /// The endpoints.
    pub(in crate::model) fn all(&self) -> impl Iterator<Item = EndpointView<'_>> + Clone {
        let (v4, v6) = match &self.endpoints {
            Endpoints::V4(list) => (&list[..], &[][..]),
            Endpoints::V6(list) => (&[][..], &list[..]),
            Endpoints::None => (&[][..], &[][..]),
        };
        let v4 = v4.iter().enumerate().map(|(index, endpoint)| EndpointView::new(self, index, endpoint));
        v4.chain(v6.iter().enumerate().map(|(index, endpoint)| EndpointView::new(self, index, endpoint)))
    }
}

impl<'a> EndpointView<'a> {
    fn new<A: Copy + Into<IpAddr>>(slice: &'a HeldSlice, index: usize, endpoint: &HeldEndpoint<A>) -> Self {
        let HeldEndpoint { addr, node, zone, conditions } = *endpoint;
        Self { index, slice, addr: addr.into(), conditions, node, zone }
    }

    /// True when it runs on the node of that name; none is a name that no slice has.
    pub(in crate::model) fn is_on(&self, node: Option<NameId>) -> bool {
        node.is_some() && self.node == node
    }

    /// Its topology hints.
    pub(super) fn hints(&self) -> Option<&'a Hints> {
        self.slice.hints.get(self.index)?.as_deref()
    }

    /// What its weight depends on.
    pub(super) fn weighed(&self, names: &Names) -> Weighed {
        Weighed {
            addr: self.addr,
            pod: self.slice.pods.get(self.index).map(Arc::from),
            node: self.node.and_then(|node| names.get(node)).cloned(),
            zone: self.zone.and_then(|zone| names.get(zone)).cloned(),
        }
    }
}

impl PodNames {
    fn new(names: &[Option<&str>]) -> Self {
        let mut present = names.iter().flatten();
        let Some(first) = present.next() else { return Self::default() };
        let mut prefix = *first;
        for name in present {
            let common = prefix.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
            prefix = &prefix[..prefix.floor_char_boundary(common)];
        }
        let mut text = prefix.to_owned();
        let end = |name: &Option<&str>| {
            let Some(name) = name else { return 0 };
            text.push_str(&name[prefix.len()..]);
            // One more, so that a pod called like the prefix is told from none.
            text.len() as u32 + 1
        };
        let ends = names.iter().map(end).collect();
        Self { prefix_len: prefix.len(), text: text.into(), ends }
    }

    fn get(&self, index: usize) -> Option<String> {
        let end = self.ends.get(index)?.checked_sub(1)? as usize;
        let before = self.ends.get(..index)?.iter().rev().find_map(|end| end.checked_sub(1));
        let start = before.map_or(self.prefix_len, |end| end as usize);
        Some([self.text.get(..self.prefix_len)?, self.text.get(start..end)?].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pods_come_back_as_they_were() {
        for names in [
            &[Some("web-7d-abc"), Some("web-7d-xyz"), None, Some("web-7d-")][..],
            &[None, Some("a"), Some("a")],
            &[Some("übung"), Some("übel"), Some("ý")],
            &[None, None],
            &[],
        ] {
            let held = PodNames::new(names);
            let read: Vec<_> = (0..names.len()).map(|index| held.get(index)).collect();
            assert_eq!(read.iter().map(Option::as_deref).collect::<Vec<_>>(), names);
        }
    }
}

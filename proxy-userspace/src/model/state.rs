//! Everything the sources have reported so far, indexed so that one change costs no more
//! than what it touches.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use ipnet::IpNet;

mod held;
mod names;

use self::{
    held::HeldSlice,
    names::{NameId, Names},
};
use super::{
    Candidate, Change, Claim, Conflict, Dirty, EndpointSlice, Exempt, Family, Node, ObjectName, Place,
    Service, ServiceCidr, ServicePort, Unknown, Weights,
    claims::{Claimant, Claims},
    pod::Pods,
};

/// The current objects.
#[derive(Debug)]
pub struct State {
    node_name: Arc<str>,
    node: Option<Node>,
    service_cidrs: BTreeMap<Arc<str>, ServiceCidr>,
    services: HashMap<ObjectName, Box<Service>>,
    /// By service, each list sorted by the slice's name. Slices may come before their service.
    slices: HashMap<ObjectName, Vec<HeldSlice>>,
    /// Slice → service of the same namespace, to find a slice by its own name.
    slice_services: HashMap<ObjectName, Arc<str>>,
    /// Of slices: nodes, zones, ports.
    names: Names,
    claims: Claims,
    pods: Pods,
    unknown: Unknown,
}

impl State {
    /// Nothing yet, seen from the node of that name.
    pub fn new(node_name: impl Into<Arc<str>>) -> Self {
        Self {
            node_name: node_name.into(),
            node: None,
            service_cidrs: BTreeMap::new(),
            services: HashMap::new(),
            slices: HashMap::new(),
            slice_services: HashMap::new(),
            names: Names::default(),
            claims: Claims::default(),
            pods: Pods::default(),
            unknown: Unknown::default(),
        }
    }

    /// Takes a change in and says what it makes stale. A change that changes nothing
    /// makes nothing stale.
    pub fn apply(&mut self, change: Change) -> Dirty {
        let mut dirty = Dirty::default();
        match change {
            Change::Service(service) => self.put_service(service, &mut dirty),
            Change::ServiceGone(name) => self.remove_service(&name, &mut dirty),
            Change::ServiceList(list) => self.replace_services(list, &mut dirty),
            Change::Slice(slice) => self.put_slice(slice, &mut dirty),
            Change::SliceGone(name) => self.remove_slice(&name, &mut dirty),
            Change::SliceList(list) => self.replace_slices(list, &mut dirty),
            Change::Node(node) if node.name == self.node_name => self.set_node(Some(node), &mut dirty),
            Change::NodeGone(name) if name == self.node_name => self.set_node(None, &mut dirty),
            Change::Node(_) | Change::NodeGone(_) => (),
            Change::ServiceCidr(cidr) => {
                dirty.node |= self.service_cidrs.get(&cidr.name) != Some(&cidr);
                self.service_cidrs.insert(cidr.name.clone(), cidr);
            }
            Change::ServiceCidrGone(name) => dirty.node |= self.service_cidrs.remove(&name).is_some(),
            Change::Pod(pod) => dirty.pods |= self.pods.put(pod),
            Change::PodGone(name) => dirty.pods |= self.pods.remove(&name),
            Change::Namespace(namespace) => dirty.pods |= self.pods.put_namespace(namespace),
            Change::NamespaceGone(name) => dirty.pods |= self.pods.remove_namespace(&name),
            Change::ServiceCidrList(list) => {
                let list = list.into_iter().map(|cidr| (cidr.name.clone(), cidr)).collect();
                dirty.node |= self.service_cidrs != list;
                self.service_cidrs = list;
            }
        }
        dirty
    }

    /// Takes in what the source cannot tell, and says what that makes stale. Unless it says so, it tells everything.
    pub fn set_unknown(&mut self, unknown: Unknown) -> Dirty {
        let before = std::mem::replace(&mut self.unknown, unknown);
        let pods = (before.pods, before.namespaces) != (unknown.pods, unknown.namespaces);
        Dirty { node: before.service_cidrs != unknown.service_cidrs, pods, ..Dirty::default() }
    }

    /// What is stale when the configuration changes: everything.
    pub fn everything(&self) -> Dirty {
        let services = self.services.keys().cloned().collect();
        Dirty { services, node: true, pods: true, conflicts: Vec::new() }
    }

    /// The name of the node this is seen from.
    pub fn node_name(&self) -> &Arc<str> {
        &self.node_name
    }

    /// This node, once it is known.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Where this proxy runs.
    pub fn place(&self) -> Place<'_> {
        Place { node: &self.node_name, zone: self.node.as_ref().and_then(|node| node.zone.as_deref()) }
    }

    /// The cluster's service ranges, sorted and without duplicates. Nothing while they are unknown.
    pub fn service_cidrs(&self) -> Option<Vec<IpNet>> {
        if self.unknown.service_cidrs {
            return None;
        }
        let mut ranges: Vec<_> =
            self.service_cidrs.values().flat_map(|cidr| cidr.ranges.iter()).map(IpNet::trunc).collect();
        ranges.sort_unstable();
        ranges.dedup();
        Some(ranges)
    }

    /// A service, if it exists.
    pub fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.services.get(name).map(Box::as_ref)
    }

    /// The pods of this node that get no socket LB. Nothing while pods are unknown.
    pub fn exempt_pods(&self) -> Option<Exempt> {
        let unknown = self.unknown;
        (!unknown.pods).then(|| self.pods.exempt(&self.node_name, unknown.namespaces))
    }

    /// All services, in no particular order.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values().map(Box::as_ref)
    }

    /// True when `name` is the service that has `claim`.
    pub fn holds(&self, claim: &Claim, name: &ObjectName) -> bool {
        self.claims.holds(claim, name)
    }

    /// Every address that more than one service claims at the moment.
    pub fn conflicts(&self) -> impl Iterator<Item = Conflict> {
        self.claims.conflicts()
    }

    /// The endpoints behind a service port in one family, an address possibly twice.
    pub fn candidates(&self, service: &ObjectName, port: &ServicePort, family: Family) -> Vec<Candidate<'_>> {
        let Some(port_name) = self.names.find(&port.name) else { return Vec::new() };
        let own = self.services.get(service).map(|service| &service.balancing.weights);
        let here = self.name_here();
        let mut candidates = Vec::new();
        for slice in self.slices_of(service).iter().filter(|slice| slice.counts_for(family)) {
            let weights = slice.weights().or(own).filter(|weights| !weights.is_empty());
            for number in slice.numbers(port_name, port.protocol) {
                candidates.extend(slice.all().map(|endpoint| Candidate {
                    addr: (endpoint.addr, number).into(),
                    local: endpoint.is_on(here),
                    weight: weights.map_or(Weights::DEFAULT, |w| w.of(endpoint.weighed(&self.names))),
                    conditions: endpoint.conditions,
                    hints: endpoint.hints(),
                }));
            }
        }
        candidates
    }

    /// What stands for this node's name in slices, if any has it.
    pub(super) fn name_here(&self) -> Option<NameId> {
        self.names.find(&self.node_name)
    }

    /// The slices of a service, sorted by name.
    pub(super) fn slices_of(&self, service: &ObjectName) -> &[HeldSlice] {
        self.slices.get(service).map_or(&[], Vec::as_slice)
    }

    fn put_service(&mut self, mut service: Service, dirty: &mut Dirty) {
        if self.service(&service.name) == Some(&service) {
            return;
        }
        service.name = self.known_name(service.name);
        let (name, claimant) = (service.name.clone(), Claimant::of(&service));
        let added: HashSet<_> = claims(&service).collect();
        dirty.conflicts.extend(doubled(&service));
        let old = self.services.insert(name.clone(), Box::new(service));
        // What it keeps must not pass through other hands: that would make them stale for nothing.
        let unchanged: HashSet<_> = match &old {
            Some(old) if Claimant::of(old) == claimant => claims(old).filter(|c| added.contains(c)).collect(),
            _ => HashSet::new(),
        };
        if let Some(old) = &old {
            self.release(old, &unchanged, dirty);
        }
        for claim in added.difference(&unchanged) {
            let Some(conflict) = self.claims.add(*claim, claimant.clone()) else { continue };
            dirty.services.insert(conflict.loser.clone());
            dirty.conflicts.push(conflict);
        }
        dirty.services.insert(name);
    }

    fn remove_service(&mut self, name: &ObjectName, dirty: &mut Dirty) {
        let Some(old) = self.services.remove(name) else { return };
        self.release(&old, &HashSet::new(), dirty);
        dirty.services.insert(name.clone());
    }

    fn release(&mut self, service: &Service, keep: &HashSet<Claim>, dirty: &mut Dirty) {
        let claimant = Claimant::of(service);
        for claim in claims(service).filter(|claim| !keep.contains(claim)) {
            dirty.services.extend(self.claims.remove(claim, &claimant));
        }
    }

    fn replace_services(&mut self, list: Vec<Service>, dirty: &mut Dirty) {
        let names: HashSet<_> = list.iter().map(|service| service.name.clone()).collect();
        let gone: Vec<_> = self.services.keys().filter(|name| !names.contains(name)).cloned().collect();
        gone.iter().for_each(|name| self.remove_service(name, dirty));
        list.into_iter().for_each(|service| self.put_service(service, dirty));
    }

    fn put_slice(&mut self, slice: EndpointSlice, dirty: &mut Dirty) {
        let service = self.known_name(slice.service_name());
        // A slice may be given to another service.
        if self.slice_services.get(&slice.name).is_some_and(|old| *old != service.name) {
            self.remove_slice(&slice.name, dirty);
        }
        self.slice_services.insert(slice.name.clone(), service.name.clone());
        let slice = HeldSlice::new(slice, &mut self.names);
        let slices = self.slices.entry(service.clone()).or_default();
        match slices.binary_search_by(|known| known.name.cmp(&slice.name)) {
            Ok(at) if slices[at] == slice => return slice.release(&mut self.names),
            Ok(at) => std::mem::replace(&mut slices[at], slice).release(&mut self.names),
            Err(at) => {
                // Most services have one, and keep it.
                slices.reserve_exact(1);
                slices.insert(at, slice);
            }
        }
        self.mark_service(service, dirty);
    }

    fn remove_slice(&mut self, name: &ObjectName, dirty: &mut Dirty) {
        let Some(service) = self.slice_services.remove(name) else { return };
        let service = ObjectName { namespace: name.namespace.clone(), name: service };
        if let Some(slices) = self.slices.get_mut(&service) {
            for slice in slices.extract_if(.., |slice| slice.name == *name) {
                slice.release(&mut self.names);
            }
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.mark_service(service, dirty);
    }

    /// The name of a service in the memory that it has already, if its slices or itself are known.
    fn known_name(&self, name: ObjectName) -> ObjectName {
        let service = self.services.get_key_value(&name).map(|(known, _)| known);
        service.or_else(|| self.slices.get_key_value(&name).map(|(known, _)| known)).cloned().unwrap_or(name)
    }

    fn replace_slices(&mut self, list: Vec<EndpointSlice>, dirty: &mut Dirty) {
        let names: HashSet<_> = list.iter().map(|slice| slice.name.clone()).collect();
        let gone: Vec<_> = self.slice_services.keys().filter(|name| !names.contains(name)).cloned().collect();
        gone.iter().for_each(|name| self.remove_slice(name, dirty));
        list.into_iter().for_each(|slice| self.put_slice(slice, dirty));
    }

    /// Slices of services that do not exist wait for them without any effect.
    fn mark_service(&self, name: ObjectName, dirty: &mut Dirty) {
        if self.services.contains_key(&name) {
            dirty.services.insert(name);
        }
    }

    fn set_node(&mut self, node: Option<Node>, dirty: &mut Dirty) {
        if self.node == node {
            return;
        }
        let old = std::mem::replace(&mut self.node, node);
        let (old, new) = (old.unwrap_or_default(), self.node.as_ref());
        dirty.node = true;
        // Whether pods are known as such can depend on the node's pod ranges.
        let pod_families = |node: &Node| Family::ALL.map(|family| node.pod_cidr(family).is_some());
        if pod_families(&old) != new.map_or([false; 2], pod_families) {
            dirty.services.extend(self.services.keys().cloned());
            return;
        }
        if old.zone.as_ref() != new.and_then(|node| node.zone.as_ref()) {
            let hinted = self.slices.iter().filter(|(_, slices)| slices.iter().any(HeldSlice::is_hinted));
            let hinted = hinted.map(|(service, _)| service).filter(|name| self.services.contains_key(name));
            dirty.services.extend(hinted.cloned());
        }
        // Whether the host may come depends on its address.
        if *old.addresses != *new.map_or(&[][..], |node| &*node.addresses) {
            let restricted = self.services.values().filter(|service| !service.source_ranges.is_empty());
            dirty.services.extend(restricted.map(|service| service.name.clone()));
        }
    }
}

fn claims(service: &Service) -> impl Iterator<Item = Claim> {
    service.faces().into_iter().map(|face| face.claim)
}

/// Claims a service makes for two of its own ports.
fn doubled(service: &Service) -> Vec<Conflict> {
    let mut seen: HashMap<Claim, &ServicePort> = HashMap::new();
    let mut conflicts = Vec::new();
    for face in service.faces() {
        let first = *seen.entry(face.claim).or_insert(face.port);
        if !std::ptr::eq(first, face.port) {
            let (winner, loser) = (service.name.clone(), service.name.clone());
            conflicts.push(Conflict { claim: face.claim, winner, loser });
        }
    }
    conflicts
}

#[cfg(test)]
mod tests;

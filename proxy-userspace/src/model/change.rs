//! What a source reports, and what became stale by it.

use std::{collections::BTreeSet, sync::Arc};

use super::{Conflict, EndpointSlice, Namespace, Node, ObjectName, Pod, Service, ServiceCidr};

/// One thing a source reports.
///
/// The list variants carry everything that exists, so that what vanished unseen (a
/// watch that was down, a file that was deleted) goes too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A service is new or has changed.
    Service(Service),
    /// A service is gone.
    ServiceGone(ObjectName),
    /// These services exist, and no others.
    ServiceList(Vec<Service>),
    /// A slice is new or has changed.
    Slice(EndpointSlice),
    /// A slice is gone.
    SliceGone(ObjectName),
    /// These slices exist, and no others.
    SliceList(Vec<EndpointSlice>),
    /// A node is new or has changed; only this node's own matters.
    Node(Node),
    /// A node is gone.
    NodeGone(Arc<str>),
    /// A service range is new or has changed.
    ServiceCidr(ServiceCidr),
    /// A service range is gone.
    ServiceCidrGone(Arc<str>),
    /// These service ranges exist, and no others.
    ServiceCidrList(Vec<ServiceCidr>),
    /// A pod is new or has changed.
    Pod(Pod),
    /// A pod is gone.
    PodGone(ObjectName),
    /// A namespace is new or has changed.
    Namespace(Namespace),
    /// A namespace is gone.
    NamespaceGone(Arc<str>),
}

impl Change {
    /// Takes `name`, which is equal to that of the object, so that it is in memory once.
    pub fn share_name(&mut self, name: &ObjectName) {
        let own = match self {
            Change::Service(service) => &mut service.name,
            Change::Slice(slice) => &mut slice.name,
            Change::Pod(pod) => &mut pod.name,
            _ => return,
        };
        debug_assert_eq!(own, name);
        own.clone_from(name);
    }
}

/// What a source cannot tell, yet or at all. That is not the same as nothing: what an earlier agent wrote about it
/// stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    /// Which service ranges there are.
    pub service_cidrs: bool,
    /// Which pods there are.
    pub pods: bool,
    /// What namespaces want of their pods.
    pub namespaces: bool,
}

/// What has to be planned anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Services whose rows may differ; some of them may be gone.
    pub services: BTreeSet<ObjectName>,
    /// Rows of the node itself may differ: settings, node addresses, service ranges.
    pub node: bool,
    /// The pods that want no socket LB may be others.
    pub pods: bool,
    /// Addresses that have just come to be claimed by two services.
    pub conflicts: Vec<Conflict>,
}

impl Dirty {
    /// Adds what another change made stale.
    pub fn merge(&mut self, other: Dirty) {
        self.services.extend(other.services);
        self.node |= other.node;
        self.pods |= other.pods;
        self.conflicts.extend(other.conflicts);
    }

    /// True when nothing has to be done.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.node && !self.pods && self.conflicts.is_empty()
    }
}

//! From objects of the Kubernetes API to values of the model, keeping only what a proxy
//! reads. A part that breaks a rule counts for nothing; an object is refused where the rest
//! would send traffic where nobody meant it to go.
//!
//! What a rule of Kubernetes *means* is the model's concern; here it is only whether the
//! object is well formed.

mod address;
mod balancing;
mod ignored;
mod node;
mod pod;
mod rejected;
mod service;
mod service_cidr;
mod slice;

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use ignored::Ignored;
pub use rejected::Rejected;

use crate::model::{Change, ObjectName};

/// A kind of object that sources read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are those of Kubernetes")]
pub enum Kind {
    Service,
    EndpointSlice,
    Node,
    ServiceCidr,
    Pod,
    Namespace,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 6] =
        [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr, Kind::Pod, Kind::Namespace];

    /// The name as `kind:` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Node => "Node",
            Kind::ServiceCidr => "ServiceCIDR",
            Kind::Pod => "Pod",
            Kind::Namespace => "Namespace",
        }
    }

    /// Objects of this kind live in namespaces.
    pub(super) fn is_namespaced(self) -> bool {
        matches!(self, Kind::Service | Kind::EndpointSlice | Kind::Pod)
    }
}

/// Names an object among all objects. The namespace of cluster-wide kinds is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// What it is.
    pub kind: Kind,
    /// Where it is and what it is called.
    pub name: ObjectName,
}

impl ObjectKey {
    /// The change that says that the object is gone.
    pub fn gone(self) -> Change {
        match self.kind {
            Kind::Service => Change::ServiceGone(self.name),
            Kind::EndpointSlice => Change::SliceGone(self.name),
            Kind::Node => Change::NodeGone(self.name.name),
            Kind::ServiceCidr => Change::ServiceCidrGone(self.name.name),
            Kind::Pod => Change::PodGone(self.name),
            Kind::Namespace => Change::NamespaceGone(self.name.name),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.name.namespace {
            "" => write!(f, "{} {}", self.kind.name(), self.name.name),
            _ => write!(f, "{} {}", self.kind.name(), self.name),
        }
    }
}

/// An object of the API that converts to a change of the model.
pub trait Convert {
    /// Its kind.
    const KIND: Kind;

    /// Its metadata.
    fn meta(&self) -> &ObjectMeta;

    /// What it says, or why it is refused. What counts for nothing is added to `ignored`.
    fn convert(&self, ignored: &mut Ignored) -> Result<Change, Rejected>;

    /// When what it tells happened, if it says so.
    fn triggered(&self) -> Option<Timestamp> {
        None
    }

    /// Its name among all objects. Without a namespace it counts as one of `default`,
    /// which is where `kubectl apply` would put it.
    fn key(&self) -> ObjectKey {
        let namespace = match self.meta().namespace.as_deref() {
            _ if !Self::KIND.is_namespaced() => "",
            None | Some("") => "default",
            Some(namespace) => namespace,
        };
        let name = self.meta().name.as_deref().unwrap_or_default();
        ObjectKey { kind: Self::KIND, name: ObjectName::new(namespace, name) }
    }
}

/// An object as a source came across it.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its name among all objects.
    pub key: ObjectKey,
    /// What it says, or why it is refused.
    pub change: Result<Change, Rejected>,
    /// What of it counts for nothing.
    pub ignored: Vec<Rejected>,
    /// When what it tells happened, if it says so.
    pub triggered: Option<Timestamp>,
}

impl Found {
    /// Converts an object.
    pub(super) fn of(object: &impl Convert) -> Self {
        let mut ignored = Ignored::default();
        let (key, change) = (object.key(), object.convert(&mut ignored));
        Self { key, change, ignored: ignored.into_reasons(), triggered: object.triggered() }
    }
}

/// The object's name, which every other field of the model hangs on.
fn require_name(key: ObjectKey) -> Result<ObjectName, Rejected> {
    if key.name.name.is_empty() { Err(Rejected::NoName) } else { Ok(key.name) }
}

#[cfg(test)]
mod tests;

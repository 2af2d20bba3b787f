//! What Kubernetes objects mean to a service proxy: typed values after conversion at
//! the edge, and the rules that read them.
//!
//! No API type, kernel, runtime or clock appears here, so every rule is tested as plain
//! code and serves every datapath.

mod balancing;
mod change;
mod claims;
mod config;
mod face;
mod health;
mod name;
mod node;
mod pod;
mod select;
mod service;
mod slice;
mod state;
mod taint;
mod timeouts;

pub use balancing::{Algorithm, Balancing, LoadBalancer, Mode, Weighed, WeightKey, Weights};
pub use change::{Change, Dirty, Unknown};
pub use claims::Conflict;
pub use config::{Config, DetectLocal, NodePortAddresses, SocketLb};
pub use face::{Claim, Face};
pub use health::HealthCheck;
pub use name::{Family, ObjectName, Protocol, ServicePortName};
pub use node::{Node, ServiceCidr};
pub use pod::{Exempt, Namespace, Pod};
pub use select::{Candidate, Place, Scopes, Selection, select};
pub use service::{Ingress, IpMode, NotServed, Service, ServicePort, ServiceType, TrafficPolicy};
pub use slice::{AddressType, Conditions, Endpoint, EndpointSlice, Hints, SlicePort};
pub use state::State;
pub use taint::{NoTaint, Taint};
pub use timeouts::Timeouts;

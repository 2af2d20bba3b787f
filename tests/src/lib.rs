//! The harness behind the node tier, the conformance runner and the demo: namespaces,
//! veth pairs and cgroups of the real kernel, sockets in them, and agents on top.
//!
//! Everything made here is removed again: when its owner is dropped, when the thread
//! panics, and when the process is told to stop (see [`cleanup`]).

pub mod agent;
mod announce;
pub mod bench;
pub mod cgroup;
pub mod cleanup;
pub mod confine;
pub mod conformance;
pub mod control_plane;
pub mod demo;
pub mod documents;
pub mod freeze;
pub mod hang;
pub mod http;
pub mod kube_proxy;
pub mod late;
mod lines;
pub mod load;
pub mod lossless;
pub mod manifests;
pub mod metrics;
pub mod mounts;
pub mod mutate;
pub mod netns;
pub mod offload;
pub mod probe;
pub mod process;
pub mod silence;
pub mod skip;
pub mod together;
pub mod topology;

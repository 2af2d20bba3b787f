//! Brings what the kernel holds in line with what is planned: ids, order, retries,
//! adoption after a restart, repair, and the sweep of flows that are no longer allowed.
//!
//! Writes go through [`MapStore`], so that the same code runs on kernel maps and, in
//! tests, on memory. No question about Kubernetes is decided here.

mod store;

pub use store::{FamilyMaps, MapError, MapName, MapStore};

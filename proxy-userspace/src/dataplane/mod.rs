//! Brings what the kernel holds in line with what is planned: ids, order, retries,
//! adoption after a restart, repair, and the sweep of flows that are no longer allowed.
//!
//! Writes go through [`MapStore`], so that the same code runs on kernel maps and, in
//! tests, on memory. No question about Kubernetes is decided here.

mod adopt;
mod backends;
mod encode;
mod family;
mod ids;
mod left;
mod memory;
mod names;
mod node;
mod pressure;
mod ranges;
mod reconcile;
mod repair;
mod retire;
mod services;
mod slot_sets;
mod source_ranges;
mod store;
mod sweep;
#[cfg(test)]
mod testing;

pub use encode::{MapAddr, service_name};
pub use left::{Left, NatFlow, leave, left_rows};
pub use memory::{Fault, Faults, MemoryFamily, MemoryMaps, Readers, Room};
pub use pressure::{MapFill, Pressure, SnatPorts};
pub use reconcile::{Applied, Reconciler, share};
pub use repair::Repairs;
pub use retire::{Translated, retire, translated};
pub use slot_sets::slots_for_tables;
pub use store::{FamilyMaps, MapError, MapName, MapStore, Sockets, StaleSocket};
pub use sweep::{Served, Survey, SweepError, Swept, Timeouts, Verdict};

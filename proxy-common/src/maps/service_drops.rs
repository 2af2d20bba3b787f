//! `service_drops`: LRU hash with a value for each CPU, service and reason → packets and connections refused. All
//! refusals, also those of no service, are in `drops` by reason alone.

use super::{assert_size, pod};

/// Rows that are kept at a time. The map has more: free ones lie with each CPU.
pub const CAPACITY: u32 = 4096;

/// Who was asked for, and why in vain.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceDropKey {
    /// Key in `services`.
    pub service: u32,
    /// A [`DropReason`](crate::DropReason).
    pub reason: u32,
}

assert_size!(ServiceDropKey = 8);
pod!(ServiceDropKey);

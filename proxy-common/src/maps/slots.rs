//! `slots_v4`, `slots_v6`: mmapable array, index → key in `backends`.

use super::{assert_size, pod};

/// Default number of slots per family.
pub const CAPACITY: u32 = 2_097_152;

/// Consecutive slots, one entry per candidate. An update writes a fresh range and then
/// swaps it in the frontend, so that a reader sees the old candidates or the new ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlotRange {
    /// Index of the first slot.
    pub offset: u32,
    /// Number of slots.
    pub len: u32,
}

assert_size!(SlotRange = 8);
pod!(SlotRange);

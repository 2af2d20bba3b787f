//! `slots_v4`, `slots_v6`: mmapable array, index → key in `backends`.

use super::{assert_size, pod};

/// Number of slots per family that the map begins with, unless configured.
pub const CAPACITY: u32 = 131_072;

/// Number of slots per family to which it grows, unless much is configured.
pub const MOST: u32 = 33_554_432;

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

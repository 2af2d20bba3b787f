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

impl SlotRange {
    /// Index of the slot that `draw` falls on, any number: one of these. That of the first, if there are none.
    #[inline(always)]
    pub fn index(&self, draw: u32) -> u32 {
        // That a range is not empty, the compiler does not see everywhere, and a panic is a function, which the
        // programs must not contain.
        self.offset.wrapping_add(if self.len == 0 { 0 } else { draw % self.len })
    }
}

assert_size!(SlotRange = 8);
pod!(SlotRange);

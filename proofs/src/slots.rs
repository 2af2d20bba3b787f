//! Which slot a number falls on.

use core::hint::black_box;

use proxy_common::maps::slots::SlotRange;

use crate::symbolic::{any, assume, proofs};

proofs! {
    /// A draw falls on one of the range's slots, whatever the hash or chance that made it.
    /// Assumes: the range has slots.
    fn slot_of_a_draw() {
        let (range, draw): (SlotRange, u32) = (any("range"), any("draw"));
        assume(range.len != 0);
        // The compiler knows it by itself, and would leave the question out.
        let index = black_box(range.index(draw));
        assert!(index.wrapping_sub(range.offset) < range.len);
    }

    /// Of an empty range the index is that of its beginning, and nothing overflows whatever the map holds.
    fn slot_of_any_range() {
        let (range, draw): (SlotRange, u32) = (any("range"), any("draw"));
        let index = range.index(draw);
        assert!(range.len != 0 || index == range.offset);
    }
}

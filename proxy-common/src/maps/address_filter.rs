//! `address_filter_v4`, `address_filter_v6`: mmapable array of bits, hash of an address → what
//! the address may be to us. Most packets have addresses that are nothing: they cost one
//! look at this array instead of one at each table.
//!
//! A bit is set before the first row that needs it is written, and stays set: connections
//! outlive the rows that began them. One that is set without need, or for another address
//! of the same hash, costs time and nothing else.

use crate::addr::Addr;

/// Bits of an address, shifted by its [`Cell`].
pub mod flags {
    /// A service answers there, or it is one of the host's: connections enter by it.
    pub const FRONTEND: u64 = 1;
    /// A service leads there: replies come from it.
    pub const BACKEND: u64 = 2;
}

/// Bits kept of each hash.
const BITS: u32 = 2;
/// Cells in a word.
const PER_WORD: u32 = u64::BITS / BITS;
/// Number of bits of a hash: 1,048,576 cells.
const CELL_BITS: u32 = 20;
/// Number of words per family, 256 KiB.
pub const CAPACITY: u32 = (1 << CELL_BITS) / PER_WORD;

/// Where the bits of an address are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Index of the word, below [`CAPACITY`].
    pub word: u32,
    /// Number of the cell's lowest bit in the word.
    pub shift: u32,
}

impl Cell {
    /// The cell of `addr`.
    #[inline(always)]
    pub fn of<A: Addr>(addr: &A) -> Self {
        // Fibonacci hashing (Knuth, TAOCP 6.4): one multiplication per word, for every packet pays it.
        let words = addr.words();
        let (mut hash, mut i) = (0u32, 0);
        while i < words.len() {
            hash = (hash ^ u32::from_be(words[i])).wrapping_mul(0x9e37_79b1);
            i += 1;
        }
        let cell = hash >> (u32::BITS - CELL_BITS);
        Self { word: cell / PER_WORD, shift: (cell % PER_WORD) * BITS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Ip4;
    use std::collections::HashSet;

    #[test]
    fn neighbours_have_cells_of_their_own() {
        let cells = (0..20_000u32).map(|i| Cell::of(&Ip4::from((0x0a60_0000 + i).to_be_bytes())));
        let distinct: HashSet<_> = cells
            .inspect(|cell| assert!(cell.word < CAPACITY && cell.shift + BITS <= u64::BITS))
            .map(|cell| (cell.word, cell.shift))
            .collect();
        // 20,000 of 1,048,576 at random leave about 190 pairs.
        assert!(distinct.len() > 19_600, "{}", distinct.len());
    }
}

//! `address_filter_v4`, `address_filter_v6`: mmapable array of bytes, hash of an address or of a
//! port → what it may be to us. Most packets have addresses that are nothing, or ports: they cost
//! a few looks at this array instead of one at each table.
//!
//! A flag is set before the first row that needs it is written, and stays set: connections
//! outlive the rows that began them. One that is set without need, or for another address
//! of the same hash, costs time and nothing else.

use crate::addr::Addr;

/// Bits of an address or port, shifted by its [`Cell`].
pub mod flags {
    /// A service answers there: connections enter by it.
    pub const FRONTEND: u64 = 1;
    /// A service leads there: replies come from it.
    pub const BACKEND: u64 = 2;
    /// It has opened a connection by packets: replies to it are to be translated.
    pub const CLIENT: u64 = 4;
    /// It has opened one that is masqueraded: its packets to backends are to be translated.
    pub const MASQUERADED: u64 = 8;
    /// It is one of the host's: connections enter by its NodePorts, replies to masqueraded
    /// packets by any port.
    pub const NODE: u64 = 16;
    /// Of a port, not of an address: it is a NodePort.
    pub const NODE_PORT: u64 = 32;
    /// It has opened a connection to a backend itself that was given another source port.
    pub const DIRECT: u64 = 64;
    /// Of a port: a backend has it, and rows of connections to backends with it.
    pub const BACKEND_PORT: u64 = 128;
}

/// Bits kept of each hash.
const BITS: u32 = 8;
/// Cells in a word.
const PER_WORD: u32 = u64::BITS / BITS;
/// Number of bits of a hash: 1,048,576 cells.
const CELL_BITS: u32 = 20;
/// Number of words per family, 1 MiB.
pub const CAPACITY: u32 = (1 << CELL_BITS) / PER_WORD;

/// Where the bits of an address or port are.
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
        let words = addr.words();
        let (mut hash, mut i) = (0u32, 0);
        while i < words.len() {
            hash = mix(hash, u32::from_be(words[i]));
            i += 1;
        }
        Self::at(hash)
    }

    /// The cell of a port.
    #[inline(always)]
    pub fn of_port(port: u16) -> Self {
        Self::at(mix(0, u32::from(port)))
    }

    #[inline(always)]
    fn at(hash: u32) -> Self {
        let cell = hash >> (u32::BITS - CELL_BITS);
        Self { word: cell / PER_WORD, shift: (cell % PER_WORD) * BITS }
    }
}

/// Fibonacci hashing (Knuth, TAOCP 6.4): one multiplication per word, for every packet pays it.
#[inline(always)]
fn mix(hash: u32, word: u32) -> u32 {
    (hash ^ word).wrapping_mul(0x9e37_79b1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Ip4;
    use std::collections::HashSet;

    fn distinct(cells: impl Iterator<Item = Cell>) -> usize {
        let inside = |cell: &Cell| assert!(cell.word < CAPACITY && cell.shift + BITS <= u64::BITS);
        cells.inspect(inside).map(|cell| (cell.word, cell.shift)).collect::<HashSet<_>>().len()
    }

    #[test]
    fn neighbours_have_cells_of_their_own() {
        let cells = (0..20_000u32).map(|i| Cell::of(&Ip4::from((0x0a60_0000 + i).to_be_bytes())));
        // 20,000 of 1,048,576 at random leave about 190 pairs.
        let distinct = distinct(cells);
        assert!(distinct > 19_600, "{distinct}");
    }

    #[test]
    fn ports_have_cells_of_their_own() {
        assert_eq!(distinct((0..=u16::MAX).map(Cell::of_port)), 1 << 16);
    }
}

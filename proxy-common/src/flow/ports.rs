//! Which source ports a connection tries, and in what order.

/// The source ports of a connection, the first one it would like to have first.
///
/// They follow from its tuple, so that all CPUs and hooks, and an agent that was restarted, come to the
/// same one. Two connections that meet at one port part at the next.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SourcePorts {
    first: u16,
    count: u32,
    place: u32,
    step: u32,
    /// Where the present round through the range has begun.
    begin: u32,
}

/// In a range below this size, one port follows the other, so that none is left out.
const SMALL: u32 = 2048;

impl SourcePorts {
    /// Those of a connection with this hash, of the `count` ports from `first` on; no ports count as one.
    #[inline(always)]
    pub fn new(first: u16, count: u16, hash: u32) -> Self {
        let count = if count == 0 { 1 } else { u32::from(count) };
        let step = if count < SMALL { 1 } else { 1 + (hash >> 16) % 1024 };
        let place = hash % count;
        Self { first, count, place, step, begin: place }
    }

    /// The port to be tried.
    #[inline(always)]
    pub fn port(&self) -> u16 {
        self.first.wrapping_add(self.place as u16)
    }

    /// How many there are.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// On to the next one. None comes twice before all have come.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.place = self.after(self.step);
        if self.place == self.begin {
            // Range and step have a common divisor.
            self.place = self.after(1);
            self.begin = self.place;
        }
    }

    #[inline(always)]
    fn after(&self, step: u32) -> u32 {
        // No step is longer than the range.
        let place = self.place + step;
        if place >= self.count { place - self.count } else { place }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, vec::Vec};

    use super::*;

    fn tried(mut ports: SourcePorts, tries: usize) -> Vec<u16> {
        let mut port = || {
            let port = ports.port();
            ports.advance();
            port
        };
        (0..tries).map(|_| port()).collect()
    }

    #[test]
    fn every_port_of_a_small_range_is_tried() {
        for (first, count) in [(1024, 1), (1024, 2), (60_000, 7), (65_000, 500)] {
            let tried = tried(SourcePorts::new(first, count, 0xdead_beef), count.into());
            assert_eq!(HashSet::from_iter(tried), (first..=first + (count - 1)).collect::<HashSet<_>>());
        }
    }

    #[test]
    fn every_port_of_a_large_range_is_tried_once() {
        for (count, hash) in [(28_976, 0x03ff_0000), (2048, 0x03ff_1234), (28_672, 0x03ff_0001), (60_000, 7)]
        {
            let tried = tried(SourcePorts::new(1024, count, hash), count.into());
            assert_eq!(HashSet::<u16>::from_iter(tried).len(), count.into(), "{count} {hash:#x}");
        }
    }

    #[test]
    fn ports_are_within_the_range_and_those_tried_differ() {
        for hash in (0..2000u32).map(|i| i.wrapping_mul(0x9e37_79b9)) {
            let tried: HashSet<_> = tried(SourcePorts::new(61_000, 4000, hash), 3).into_iter().collect();
            assert_eq!(tried.len(), 3, "{hash}");
            assert!(tried.iter().all(|port| (61_000..65_000).contains(port)));
        }
        assert_eq!(tried(SourcePorts::new(1024, 0, 7), 2), [1024, 1024]);
    }
}

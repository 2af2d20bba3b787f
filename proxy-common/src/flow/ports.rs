//! Which source ports a connection tries, and in what order.

/// The source ports of a connection, the first one it would like to have first.
///
/// They follow from its tuple, so that all CPUs and hooks, and an agent that was restarted, come to the
/// same one. Two connections that meet at one port part at the next.
#[derive(Clone, Copy, Debug)]
pub struct SourcePorts {
    first: u16,
    count: u32,
    place: u32,
    step: u32,
}

/// In a range below this size, one port follows the other, so that none is left out.
const SMALL: u32 = 2048;

impl SourcePorts {
    /// Those of a connection with this hash, of the `count` ports from `first` on; no ports count as one.
    #[inline(always)]
    pub fn new(first: u16, count: u16, hash: u32) -> Self {
        let count = if count == 0 { 1 } else { u32::from(count) };
        let step = if count < SMALL { 1 } else { 1 + (hash >> 16) % 1024 };
        Self { first, count, place: hash % count, step }
    }

    /// The port to be tried.
    #[inline(always)]
    pub fn port(&self) -> u16 {
        self.first.wrapping_add(self.place as u16)
    }

    /// On to the next one.
    #[inline(always)]
    pub fn advance(&mut self) {
        // No step is longer than the range.
        self.place += self.step;
        if self.place >= self.count {
            self.place -= self.count;
        }
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
    fn ports_are_within_the_range_and_those_tried_differ() {
        for hash in (0..2000u32).map(|i| i.wrapping_mul(0x9e37_79b9)) {
            let tried: HashSet<_> = tried(SourcePorts::new(61_000, 4000, hash), 3).into_iter().collect();
            assert_eq!(tried.len(), 3, "{hash}");
            assert!(tried.iter().all(|port| (61_000..65_000).contains(port)));
        }
        assert_eq!(tried(SourcePorts::new(1024, 0, 7), 2), [1024, 1024]);
    }
}

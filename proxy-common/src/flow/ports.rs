//! Which source ports a connection tries, and in what order.

/// The source ports of a connection, the first one it would like to have first, then the others of the same
/// 64, then 64 after 64. So that those known to be held are passed over at once: see
/// [`held_ports`](crate::maps::held_ports).
///
/// They follow from its tuple, so that all CPUs and hooks, and an agent that was restarted, come to the
/// same one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SourcePorts {
    /// Those of the present word that are still to be tried: bit 0 is port `begin`.
    left: u64,
    count: u32,
    word: u32,
    /// Where in each word its first port is.
    begin: u32,
    /// Words that have been begun.
    begun: u32,
    first: u16,
}

/// Ports in a word.
const WORD: u32 = u64::BITS;

impl SourcePorts {
    /// Those of a connection with this hash, of the `count` ports from `first` on; no ports count as one.
    #[inline(always)]
    pub fn new(first: u16, count: u16, hash: u32) -> Self {
        let count = if count == 0 { 1 } else { u32::from(count) };
        let place = hash % count;
        let mut ports = Self { left: 0, count, word: place / WORD, begin: place % WORD, begun: 1, first };
        ports.left = ports.all();
        ports
    }

    /// The port to be tried.
    #[inline(always)]
    pub fn port(&self) -> u16 {
        let bit = (self.begin + self.left.trailing_zeros()) % WORD;
        self.first.wrapping_add((self.word * WORD + bit) as u16)
    }

    /// On to the next one. None comes twice before all have come.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.pass();
        if self.is_empty() {
            self.next_word();
        }
    }

    /// On to the next one of the present word, if it has more.
    #[inline(always)]
    pub fn pass(&mut self) {
        self.left &= self.left.wrapping_sub(1);
    }

    /// Passes over ports of the present word, by their bits; then it may be empty.
    #[inline(always)]
    pub fn leave_out(&mut self, ports: u64) {
        self.left &= !ports.rotate_right(self.begin);
    }

    /// True if no port of the present word is left.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// On to the first port of the next word.
    #[inline(always)]
    pub fn next_word(&mut self) {
        let next = self.word + 1;
        self.word = if next * WORD < self.count { next } else { 0 };
        self.begun += 1;
        self.begin_word();
    }

    /// Has all ports of the present word come again.
    #[inline(always)]
    pub fn begin_word(&mut self) {
        self.left = self.all();
    }

    /// How many words have been begun.
    #[inline(always)]
    pub fn begun(&self) -> u32 {
        self.begun
    }

    /// True if all ports have come.
    #[inline(always)]
    pub fn is_over(&self) -> bool {
        (self.begun - 1) * WORD >= self.count
    }

    /// Begins again with the present word.
    #[inline(always)]
    pub fn begin_again(&mut self) {
        self.begun = 1;
        self.begin_word();
    }

    /// Number of the present word.
    #[inline(always)]
    pub fn word(&self) -> u16 {
        self.word as u16
    }

    /// Number of the word that a port is in.
    #[inline(always)]
    pub fn word_of(&self, port: u16) -> u16 {
        port.wrapping_sub(self.first) / WORD as u16
    }

    /// The port's bit in its word.
    #[inline(always)]
    pub fn bit_of(&self, port: u16) -> u64 {
        1 << (port.wrapping_sub(self.first) % WORD as u16)
    }

    /// The ports of the present word, in the order in which they are tried: the last word may be short.
    #[inline(always)]
    fn all(&self) -> u64 {
        let rest = self.count - self.word * WORD;
        let ports = if rest < WORD { (1 << rest) - 1 } else { u64::MAX };
        ports.rotate_right(self.begin)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, vec, vec::Vec};

    use super::*;

    fn next(ports: &mut SourcePorts) -> u16 {
        let port = ports.port();
        ports.advance();
        port
    }

    fn tried(mut ports: SourcePorts) -> Vec<u16> {
        let mut tried = Vec::new();
        while !ports.is_over() {
            tried.push(next(&mut ports));
        }
        tried
    }

    #[test]
    fn every_port_is_tried_once() {
        for (first, count) in
            [(1024, 1), (1024, 2), (60_000, 7), (61_000, 64), (65_000, 500), (1024, 28_976), (1, u16::MAX)]
        {
            for hash in [0, 1, 63, 64, 65, 0xdead_beef, u32::MAX] {
                let tried = tried(SourcePorts::new(first, count, hash));
                let range = u32::from(first)..u32::from(first) + u32::from(count);
                assert_eq!(tried.len(), count.into(), "{count} {hash:#x}");
                let tried: HashSet<u32> = tried.into_iter().map(u32::from).collect();
                assert_eq!(tried, range.collect(), "{count} {hash:#x}");
            }
        }
        assert_eq!(tried(SourcePorts::new(1024, 0, 7)), [1024]);
    }

    #[test]
    fn connections_begin_everywhere() {
        let begin = |hash| SourcePorts::new(61_000, 4000, hash).port();
        let begun: HashSet<u16> = (0..4000).map(begin).collect();
        assert_eq!(begun.len(), 4000);
    }

    #[test]
    fn ports_that_are_left_out_do_not_come() {
        for count in [7, 64, 1000] {
            let mut ports = SourcePorts::new(2000, count, 0x1234_5678);
            let first = next(&mut ports);
            let held: Vec<u16> = [2, 3, 5].into_iter().map(|n| 2000 + n).collect();
            let mut tried = vec![first];
            let mut informed = 0;
            while !ports.is_over() {
                if informed != ports.begun() {
                    informed = ports.begun();
                    let here = |port: &&u16| ports.word_of(**port) == ports.word_of(ports.port());
                    let bits = held.iter().filter(here).fold(0, |bits, port| bits | ports.bit_of(*port));
                    ports.leave_out(bits);
                    if ports.is_empty() {
                        ports.next_word();
                        continue;
                    }
                }
                tried.push(next(&mut ports));
            }
            let all = (2000..2000 + count).filter(|port| *port == first || !held.contains(port));
            assert_eq!(tried.len(), all.clone().count());
            assert_eq!(HashSet::<u16>::from_iter(tried), all.collect());
        }
    }

    #[test]
    fn a_full_word_is_passed_over() {
        let mut ports = SourcePorts::new(1024, 130, 5);
        ports.leave_out(u64::MAX);
        assert!(ports.is_empty());
        ports.next_word();
        assert_eq!((ports.port(), ports.begun()), (1024 + 64 + 5, 2));
        ports.next_word();
        // It has two ports.
        assert_eq!(next(&mut ports), 1024 + 128);
        assert_eq!(next(&mut ports), 1024 + 129);
        assert!(ports.is_over());
        ports.begin_again();
        assert!(!ports.is_over());
        assert_eq!(ports.port(), 1024 + 5);
    }
}

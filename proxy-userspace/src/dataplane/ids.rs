//! Numbers for rows: given out, taken back, and kept over restarts.

use std::collections::VecDeque;

/// Numbers that stay free while there are others that nobody has had. Entries of the connection table
/// name rows by number; most of them are gone by the time a number returns.
const KEPT_FREE: usize = 1024;

/// Numbers from 1 to a limit.
#[derive(Debug)]
pub(super) struct IdPool {
    /// The first number that was never given out.
    next: u32,
    /// The greatest number that may be given out.
    last: u32,
    /// Numbers that came back, oldest first.
    freed: VecDeque<u32>,
    /// Numbers that came back, but a program may still read their rows.
    resting: Vec<u32>,
}

impl IdPool {
    /// A pool of the numbers from 1 to `last` without those in use.
    pub(super) fn new(last: u32, in_use: impl IntoIterator<Item = u32>) -> Self {
        let mut in_use: Vec<_> = in_use.into_iter().filter(|id| (1..=last).contains(id)).collect();
        in_use.sort_unstable();
        let mut pool = Self { next: 1, last, freed: VecDeque::new(), resting: Vec::new() };
        for id in in_use {
            pool.freed.extend(pool.next..id);
            pool.next = pool.next.max(id + 1);
        }
        pool
    }

    /// A number that nobody has.
    pub(super) fn take(&mut self) -> Option<u32> {
        let fresh = self.next <= self.last;
        if fresh && self.freed.len() <= KEPT_FREE {
            self.next += 1;
            return Some(self.next - 1);
        }
        self.freed.pop_front()
    }

    /// Takes a number back. It can be given out again after the next [`IdPool::settle`].
    pub(super) fn release(&mut self, id: u32) {
        if (1..self.next).contains(&id) {
            self.resting.push(id);
        }
    }

    /// Gives back a number that no program could have come across.
    pub(super) fn release_unread(&mut self, id: u32) {
        if (1..self.next).contains(&id) {
            self.freed.push_back(id);
        }
    }

    /// Makes what was released before available: every program that may read it has ended.
    pub(super) fn settle(&mut self) {
        self.freed.extend(self.resting.drain(..));
    }

    /// Numbers that [`IdPool::settle`] would make available.
    pub(super) fn resting(&self) -> usize {
        self.resting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_use_are_not_given_out() {
        let mut pool = IdPool::new(6, [5, 2, 0, 9, 2]);
        let mut all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        all.sort_unstable();
        assert_eq!(all, [1, 3, 4, 6]);
        pool.release(2);
        assert_eq!((pool.take(), pool.resting()), (None, 1));
        pool.settle();
        assert_eq!((pool.take(), pool.take(), pool.resting()), (Some(2), None, 0));
    }

    #[test]
    fn a_number_stays_free_while_there_are_others() {
        let mut pool = IdPool::new(10_000, []);
        let first = pool.take().expect("a number");
        pool.release(first);
        pool.settle();
        assert!((0..1000).all(|_| pool.take() != Some(first)));
    }

    #[test]
    fn a_foreign_number_is_not_taken_back() {
        let mut pool = IdPool::new(2, []);
        pool.release(2);
        pool.settle();
        assert_eq!((pool.take(), pool.take(), pool.take()), (Some(1), Some(2), None));
    }
}

//! Ranges of one big array: best fit, joined again when neighbours are free.

use std::collections::{BTreeMap, BTreeSet};

use proxy_common::maps::slots::SlotRange;

use super::{MapError, MapName};

/// Which ranges of the array are free.
#[derive(Debug)]
pub(super) struct Ranges {
    /// Offset → length.
    free: BTreeMap<u32, u32>,
    /// (length, offset) of the same ranges.
    by_len: BTreeSet<(u32, u32)>,
    /// Given back, but a program may still read them.
    resting: Vec<SlotRange>,
    capacity: u32,
    /// Elements in `free`.
    unused: u32,
}

impl Ranges {
    /// An array of which nothing is used.
    pub(super) fn new(capacity: u32) -> Self {
        let mut ranges =
            Self { free: BTreeMap::new(), by_len: BTreeSet::new(), resting: Vec::new(), capacity, unused: 0 };
        ranges.insert(0, capacity);
        ranges
    }

    /// A range of `len` elements, if there is one.
    pub(super) fn take(&mut self, len: u32) -> Option<SlotRange> {
        let (free, offset) = *self.by_len.range((len, 0)..).next()?;
        self.remove(offset, free);
        self.insert(offset + len, free - len);
        Some(SlotRange { offset, len })
    }

    /// Likewise, if so many elements stay free.
    pub(super) fn take_leaving(&mut self, len: u32, rest: u32) -> Option<SlotRange> {
        let leaves = self.unused.checked_sub(len).is_some_and(|left| left >= rest);
        if leaves { self.take(len) } else { None }
    }

    /// Takes exactly this range. Refuses when part of it is in use or does not exist.
    pub(super) fn reserve(&mut self, range: SlotRange) -> bool {
        let Some(end) = range.offset.checked_add(range.len) else { return false };
        let Some((&offset, &len)) = self.free.range(..=range.offset).next_back() else { return false };
        if end > offset + len {
            return false;
        }
        self.remove(offset, len);
        self.insert(offset, range.offset - offset);
        self.insert(end, offset + len - end);
        true
    }

    /// Gives a range back. It can be taken again after the next [`Ranges::settle`].
    pub(super) fn release(&mut self, range: SlotRange) {
        self.resting.push(range);
    }

    /// Elements that [`Ranges::settle`] would make available.
    pub(super) fn resting(&self) -> u32 {
        self.resting.iter().map(|range| range.len).sum()
    }

    /// To be asked before something is done for want of room.
    ///
    /// # Errors
    /// When [`Ranges::settle`] would make some.
    pub(super) fn ensure_none_rest(&self) -> Result<(), MapError> {
        if self.resting.is_empty() { Ok(()) } else { Err(self.full()) }
    }

    /// That there is no room.
    pub(super) fn full(&self) -> MapError {
        MapError::Full { map: MapName::Slots, capacity: self.capacity }
    }

    /// Makes what was released before available: every program that may read it has ended.
    pub(super) fn settle(&mut self) {
        for range in std::mem::take(&mut self.resting) {
            self.release_unread(range);
        }
    }

    /// Gives back a range that no packet could have come across.
    pub(super) fn release_unread(&mut self, range: SlotRange) {
        let SlotRange { mut offset, mut len } = range;
        if let Some((&before, &before_len)) = self.free.range(..offset).next_back()
            && before + before_len == offset
        {
            self.remove(before, before_len);
            (offset, len) = (before, before_len + len);
        }
        if let Some(&after_len) = self.free.get(&(offset + len)) {
            self.remove(offset + len, after_len);
            len += after_len;
        }
        self.insert(offset, len);
    }

    /// Length of the array.
    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Number of elements that somebody has.
    pub(super) fn used(&self) -> u32 {
        self.capacity - self.unused - self.resting()
    }

    fn insert(&mut self, offset: u32, len: u32) {
        if len > 0 {
            self.unused += len;
            self.free.insert(offset, len);
            self.by_len.insert((len, offset));
        }
    }

    fn remove(&mut self, offset: u32, len: u32) {
        self.unused -= len;
        self.free.remove(&offset);
        self.by_len.remove(&(len, offset));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(offset: u32, len: u32) -> SlotRange {
        SlotRange { offset, len }
    }

    #[test]
    fn a_released_range_rests() {
        let mut ranges = Ranges::new(4);
        let all = ranges.take(4).expect("room");
        ranges.release(all);
        assert_eq!((ranges.take(1), ranges.resting(), ranges.used()), (None, 4, 0));
        ranges.settle();
        assert_eq!((ranges.take(4), ranges.resting(), ranges.used()), (Some(all), 0, 4));
    }

    #[test]
    fn reserved_ranges_do_not_overlap() {
        let mut ranges = Ranges::new(10);
        assert!(ranges.reserve(range(2, 3)));
        assert!(!ranges.reserve(range(4, 2)));
        assert!(!ranges.reserve(range(8, 3)));
        assert!(!ranges.reserve(range(u32::MAX, 2)));
        assert!(ranges.reserve(range(8, 2)));
        assert_eq!(ranges.take(3), Some(range(5, 3)));
        assert_eq!(ranges.take(2), Some(range(0, 2)));
        assert_eq!(ranges.take(1), None);
    }

    proptest! {
        /// Whatever is taken and released: ranges never overlap, and in the end all is one.
        #[test]
        fn ranges_are_disjoint_and_join(steps in prop::collection::vec((0u32..12, any::<prop::sample::Index>()), 1..60)) {
            let mut ranges = Ranges::new(64);
            let mut taken: Vec<SlotRange> = Vec::new();
            for (len, pick) in steps {
                match len {
                    0 if !taken.is_empty() => ranges.release(taken.swap_remove(pick.index(taken.len()))),
                    0 => ranges.settle(),
                    len => {
                        let Some(new) = ranges.take(len) else { continue };
                        prop_assert!(new.offset + new.len <= 64);
                        for old in &taken {
                            prop_assert!(new.offset + new.len <= old.offset || old.offset + old.len <= new.offset);
                        }
                        taken.push(new);
                    }
                }
            }
            taken.into_iter().for_each(|range| ranges.release(range));
            ranges.settle();
            prop_assert_eq!(ranges.used(), 0);
            prop_assert_eq!(ranges.take_leaving(64, 1), None);
            prop_assert_eq!(ranges.take(64), Some(range(0, 64)));
        }
    }
}

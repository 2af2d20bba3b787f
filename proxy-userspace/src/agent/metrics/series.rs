//! Counters by service and by backend, a bounded number of each: a scraper can take so many
//! series, and what a cluster may have is more. What has no series of its own is in one that
//! all such share.
//!
//! The kernel counts by ids, and forgets a backend's count when the backend is gone; the ids
//! then stand for others. A counter must never fall, so here only what was added since the
//! last look counts, under the name that the id had then.

use std::{collections::HashMap, hash::Hash};

use proxy_common::maps::counters::{CounterKey, Traffic};

use crate::{dataplane::Served, model::Family};

/// Where a count of the kernel stands.
pub(super) type Place = (Family, CounterKey);

/// Series of one kind.
#[derive(Debug)]
pub(super) struct Series<K> {
    limit: usize,
    known: HashMap<K, Row>,
    /// Everything beyond the limit.
    other: Option<Served>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Row {
    total: Served,
    /// It was there at the last look.
    fresh: bool,
}

impl<K: Eq + Hash> Series<K> {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, known: HashMap::new(), other: None }
    }

    /// A look begins: levels are counted anew.
    pub(super) fn begin(&mut self) {
        for row in self.known.values_mut() {
            row.fresh = false;
            row.total.open = 0;
        }
        if let Some(other) = &mut self.other {
            other.open = 0;
        }
    }

    /// Adds what came since the last look. Nothing has a name that is known no more.
    pub(super) fn add(&mut self, key: Option<K>, more: &Served) {
        let has_room = self.known.len() < self.limit;
        let row = key.and_then(|key| {
            let is_known = self.known.contains_key(&key);
            (is_known || has_room).then(|| self.known.entry(key).or_default())
        });
        let total = match row {
            Some(row) => {
                row.fresh = true;
                &mut row.total
            }
            None => self.other.get_or_insert_default(),
        };
        total.opened += more.opened;
        total.open += more.open;
        total.traffic += more.traffic;
    }

    /// A look is over: series that were not there, and are not kept, go.
    pub(super) fn end(&mut self, keep: impl Fn(&K) -> bool) {
        self.known.retain(|key, row| row.fresh || keep(key));
    }

    /// Each series; none for the one of all others.
    pub(super) fn rows(&self) -> impl Iterator<Item = (Option<&K>, &Served)> {
        let known = self.known.iter().map(|(key, row)| (Some(key), &row.total));
        known.chain(self.other.iter().map(|other| (None, other)))
    }
}

/// The counts of the kernel at the last look.
#[derive(Debug, Default)]
pub(super) struct Seen(HashMap<Place, Served>);

impl Seen {
    /// Looks again: each count with what was added to it.
    pub(super) fn look(
        &mut self,
        counts: impl Iterator<Item = (Family, CounterKey, Served)>,
    ) -> Vec<(Place, Served)> {
        let mut now = HashMap::with_capacity(self.0.len());
        let mut added = Vec::with_capacity(self.0.len());
        for (family, key, served) in counts {
            let before = self.0.get(&(family, key)).copied().unwrap_or_default();
            let (more, highest) = since(&before, &served);
            added.push(((family, key), more));
            now.insert((family, key), highest);
        }
        self.0 = now;
        added
    }
}

/// What was added since, and how high the counts have been. Where the count of opened connections has fallen, all
/// have begun anew. Traffic alone falls when a row was on its way from the table to the sums: that comes again.
fn since(before: &Served, now: &Served) -> (Served, Served) {
    let before = if now.opened < before.opened { Served::default() } else { *before };
    let (b, n) = (before.traffic, now.traffic);
    let each = |of: fn(u64, u64) -> u64| Traffic {
        in_packets: of(n.in_packets, b.in_packets),
        in_bytes: of(n.in_bytes, b.in_bytes),
        out_packets: of(n.out_packets, b.out_packets),
        out_bytes: of(n.out_bytes, b.out_bytes),
    };
    let more = Served { opened: now.opened - before.opened, traffic: each(u64::saturating_sub), ..*now };
    (more, Served { traffic: each(u64::max), ..*now })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(opened: u64, open: u64) -> Served {
        Served { opened, open, ..Served::default() }
    }

    fn look(seen: &mut Seen, backend: u32, served: Served) -> Served {
        let key = CounterKey { service: 1, backend, kind: 1 };
        seen.look([(Family::V4, key, served)].into_iter())[0].1
    }

    #[test]
    fn what_was_added_counts_and_a_fall_is_a_new_beginning() {
        let mut seen = Seen::default();
        assert_eq!(look(&mut seen, 1, served(5, 2)), served(5, 2));
        assert_eq!(look(&mut seen, 1, served(7, 1)), served(2, 1));
        assert_eq!(look(&mut seen, 1, served(3, 0)), served(3, 0));
        // Away and back: the kernel forgot it.
        assert_eq!(look(&mut seen, 2, served(1, 0)), served(1, 0));
        assert_eq!(look(&mut seen, 1, served(1, 0)), served(1, 0));
    }

    #[test]
    fn traffic_that_was_missed_once_is_not_counted_twice() {
        let mut seen = Seen::default();
        let carried = |opened, in_bytes| {
            let traffic = Traffic { in_bytes, ..Traffic::default() };
            Served { opened, traffic, ..Served::default() }
        };
        let mut more = |opened, bytes| look(&mut seen, 1, carried(opened, bytes)).traffic.in_bytes;
        assert_eq!([more(5, 1000), more(5, 400), more(6, 1100), more(6, 1150)], [1000, 0, 100, 50]);
        // All of the backend's counts have been forgotten.
        assert_eq!([more(1, 100), more(1, 130)], [100, 30]);
    }

    #[test]
    fn beyond_the_limit_all_share_one_series() {
        let mut series = Series::new(2);
        let mut round = |keys: &[&'static str]| {
            series.begin();
            keys.iter().for_each(|key| series.add(Some(*key), &served(1, 1)));
            series.add(None, &served(1, 0));
            series.end(|key| *key == "kept");
            let mut rows: Vec<_> =
                series.rows().map(|(key, s)| (key.copied().unwrap_or("other"), s.opened, s.open)).collect();
            rows.sort_unstable();
            rows
        };
        assert_eq!(round(&["a", "kept", "c"]), [("a", 1, 1), ("kept", 1, 1), ("other", 2, 1)]);
        assert_eq!(round(&["a"]), [("a", 2, 1), ("kept", 1, 0), ("other", 3, 0)]);
        // "a" still had its place when "c" came.
        assert_eq!(round(&["c"]), [("kept", 1, 0), ("other", 5, 1)]);
        assert_eq!(round(&["c"]), [("c", 1, 1), ("kept", 1, 0), ("other", 6, 0)]);
    }
}

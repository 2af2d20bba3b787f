//! Which backend has which id, and who still needs it.

use std::{collections::hash_map::RandomState, hash::BuildHasher};

use hashbrown::HashTable;
use proxy_common::maps::backends::Backend;

use super::{MapAddr, MapError, MapName, ids::IdPool};

/// The rows of `backends`. One row serves every service port that leads to its address.
#[derive(Debug)]
pub(super) struct BackendTable<A> {
    /// The ids of rows, found by what `records` has: rows are many, and there once.
    ids: HashTable<u32>,
    hasher: RandomState,
    /// By id.
    records: Vec<Option<Record<A>>>,
    /// Records there are.
    len: usize,
    pool: IdPool,
    /// Ids whose last user is gone; some may have found a new one since.
    idle: Vec<u32>,
    /// Ids of an earlier agent, whose users may not have been planned yet.
    adopted: Vec<u32>,
    capacity: u32,
}

#[derive(Debug)]
struct Record<A> {
    row: Backend<A>,
    users: u32,
    kernel: Kernel,
}

/// What is known of a row in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    /// Nobody has tried to write it.
    Absent,
    /// A write failed, perhaps half way.
    Unknown,
    /// It is there.
    Holds,
}

impl<A: MapAddr> BackendTable<A> {
    /// The rows the kernel holds; none of them has a user yet.
    pub(super) fn adopt(capacity: u32, rows: Vec<(u32, Backend<A>)>) -> Self {
        let pool = IdPool::new(capacity.saturating_sub(1), rows.iter().map(|(id, _)| *id));
        let mut table = Self {
            ids: HashTable::new(),
            hasher: RandomState::new(),
            records: Vec::new(),
            len: 0,
            pool,
            idle: Vec::new(),
            adopted: rows.iter().map(|(id, _)| *id).collect(),
            capacity,
        };
        for (id, row) in rows {
            table.insert(id, Record { row, users: 0, kernel: Kernel::Holds });
        }
        table
    }

    /// Counts what nobody has asked for since [`BackendTable::adopt`] as idle. False if that has been done, or nothing
    /// was adopted.
    pub(super) fn release_adopted(&mut self) -> bool {
        let any = !self.adopted.is_empty();
        self.idle.append(&mut self.adopted);
        any
    }

    fn find(&self, row: &Backend<A>) -> Option<u32> {
        let is_it = |id: &u32| self.row(*id) == Some(row);
        self.ids.find(self.hasher.hash_one(row), is_it).copied()
    }

    fn record(&self, id: u32) -> Option<&Record<A>> {
        self.records.get(id as usize)?.as_ref()
    }

    fn record_mut(&mut self, id: u32) -> Option<&mut Record<A>> {
        self.records.get_mut(id as usize)?.as_mut()
    }

    /// Of two ids with the same row, which an earlier agent may have left, the first is the row's.
    fn insert(&mut self, id: u32, record: Record<A>) {
        let index = id as usize;
        if self.records.len() <= index {
            self.records.resize_with(index + 1, || None);
        }
        let is_known = self.find(&record.row).is_some();
        let hash = self.hasher.hash_one(record.row);
        self.len += usize::from(self.records[index].replace(record).is_none());
        if !is_known {
            let (records, hasher) = (&self.records, &self.hasher);
            let hash_of = |id: &u32| {
                records
                    .get(*id as usize)
                    .and_then(Option::as_ref)
                    .map_or(0, |record| hasher.hash_one(record.row))
            };
            self.ids.insert_unique(hash, id, hash_of);
        }
    }

    /// The id for a row, with one user more.
    pub(super) fn acquire(&mut self, row: Backend<A>) -> Result<u32, MapError> {
        if let Some(id) = self.find(&row) {
            self.retain(id);
            return Ok(id);
        }
        let full = MapError::Full { map: MapName::Backends, capacity: self.capacity };
        let id = self.pool.take().ok_or(full)?;
        self.insert(id, Record { row, users: 1, kernel: Kernel::Absent });
        Ok(id)
    }

    /// The id for a row that already has one, with one user more.
    pub(super) fn acquire_known(&mut self, row: &Backend<A>) -> Option<u32> {
        let id = self.find(row)?;
        self.retain(id).then_some(id)
    }

    /// One user more; false when there is no such row.
    pub(super) fn retain(&mut self, id: u32) -> bool {
        let Some(record) = self.record_mut(id) else { return false };
        record.users += 1;
        true
    }

    /// One user less.
    pub(super) fn release(&mut self, id: u32) {
        let Some(record) = self.record_mut(id) else { return };
        record.users = record.users.saturating_sub(1);
        if record.users == 0 && record.kernel == Kernel::Absent {
            self.remove(id);
            self.pool.release_unread(id);
        } else if record.users == 0 {
            self.idle.push(id);
        }
    }

    /// The row of an id.
    pub(super) fn row(&self, id: u32) -> Option<&Backend<A>> {
        self.record(id).map(|record| &record.row)
    }

    /// The rows among `ids` that the kernel may not hold.
    pub(super) fn unwritten(&self, ids: &[u32]) -> impl Iterator<Item = (u32, Backend<A>)> {
        let record = |id: &u32| Some((*id, self.record(*id)?));
        ids.iter()
            .filter_map(record)
            .filter(|(_, record)| record.kernel != Kernel::Holds)
            .map(|(id, record)| (id, record.row))
    }

    /// Notes the outcome of writing rows.
    pub(super) fn set_written(&mut self, ids: impl IntoIterator<Item = u32>, succeeded: bool) {
        for id in ids {
            if let Some(record) = self.record_mut(id) {
                record.kernel = if succeeded { Kernel::Holds } else { Kernel::Unknown };
            }
        }
    }

    /// Ids that have no user.
    pub(super) fn idle(&mut self) -> Vec<u32> {
        let records = &self.records;
        let is_idle = |id: &u32| {
            records.get(*id as usize).and_then(Option::as_ref).is_some_and(|record| record.users == 0)
        };
        self.idle.retain(is_idle);
        self.idle.sort_unstable();
        self.idle.dedup();
        self.idle.clone()
    }

    /// Makes ids available that were forgotten before: every program that may have come across them has ended.
    pub(super) fn settle(&mut self) {
        self.pool.settle();
    }

    /// Ids that [`BackendTable::settle`] would make available.
    pub(super) fn resting(&self) -> usize {
        self.pool.resting()
    }

    /// Forgets idle ids, after they have been taken out in the kernel.
    pub(super) fn forget_idle(&mut self) {
        for id in std::mem::take(&mut self.idle) {
            self.remove(id);
            self.pool.release(id);
        }
    }

    fn remove(&mut self, id: u32) {
        let Some(record) = self.record(id) else { return };
        let hash = self.hasher.hash_one(record.row);
        if let Ok(entry) = self.ids.find_entry(hash, |known| *known == id) {
            entry.remove();
        }
        self.records[id as usize] = None;
        self.len -= 1;
    }

    /// What the kernel has to hold under an id, if it is to hold something there: of a backend that was taken out, it
    /// may hold what it was. Nothing is said about rows in between.
    pub(super) fn expected(&self, id: u32) -> Option<Backend<A>> {
        match self.record(id) {
            Some(record) if record.kernel == Kernel::Holds && record.users > 0 => Some(record.row),
            Some(_) => None,
            None => Some(Backend::default()),
        }
    }

    /// Number of rows in use.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use proxy_common::addr::Ip4;

    use super::*;

    fn row(last: u8) -> Backend<Ip4> {
        Backend { addr: [10, 0, 0, last].into(), port: 80, proto: 6, flags: 1 }
    }

    #[test]
    fn one_id_for_one_address() {
        let mut table = BackendTable::adopt(10, vec![]);
        let one = table.acquire(row(1)).expect("room");
        assert_eq!(table.acquire(row(1)).expect("room"), one);
        let two = table.acquire(row(2)).expect("room");
        assert_ne!(one, two);
        table.set_written([one], true);
        table.release(one);
        assert!(table.idle().is_empty());
        table.release(one);
        assert_eq!(table.idle(), [one]);
        assert!(table.acquire_known(&row(1)).is_some());
        assert!(table.idle().is_empty());
        assert!(table.acquire_known(&row(3)).is_none());
        table.release(two);
        assert!(table.row(two).is_none(), "what was never written needs no clearing");
    }

    #[test]
    fn a_full_table_says_so() {
        let mut table = BackendTable::adopt(2, vec![]);
        assert_eq!(table.acquire(row(1)).expect("room"), 1);
        assert!(matches!(table.acquire(row(2)), Err(MapError::Full { capacity: 2, .. })));
    }

    #[test]
    fn adopted_rows_keep_their_ids() {
        let mut table = BackendTable::adopt(10, vec![(7, row(1)), (3, row(2)), (4, row(2))]);
        assert_eq!(table.acquire(row(1)).expect("room"), 7);
        assert_eq!(table.acquire(row(2)).expect("room"), 3);
        assert_eq!(table.idle(), [0; 0], "who wants 4 may not have been planned");
        assert!(table.release_adopted() && !table.release_adopted());
        assert_eq!(table.idle(), [4]);
        table.forget_idle();
        assert_eq!(table.acquire(row(2)).expect("room"), 3);
        assert_eq!(table.unwritten(&[3, 7]).count(), 0);
    }
}

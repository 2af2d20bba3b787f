//! The source ranges of service ports: written before a frontend is restricted to them,
//! removed after it no longer is.

use std::collections::{BTreeSet, HashSet};

use proxy_common::maps::source_ranges::SourceRange;

use super::{
    FamilyMaps, MapAddr, MapError,
    family::{FamilyTable, Rows, Staged},
};

/// The rows of one service port.
#[derive(Debug)]
pub(super) struct SourceRanges<A> {
    /// Rows the kernel may hold.
    held: BTreeSet<SourceRange<A>>,
    /// After a write or a removal that failed: the kernel may lack some of them.
    doubtful: bool,
}

impl<A> Default for SourceRanges<A> {
    fn default() -> Self {
        Self { held: BTreeSet::new(), doubtful: false }
    }
}

impl<A> SourceRanges<A> {
    /// Rows the kernel may hold.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}

impl<A: MapAddr> FamilyTable<A> {
    /// Takes over the rows the kernel holds.
    pub(super) fn adopt_source_ranges(&mut self, maps: &impl FamilyMaps<A>) -> Result<(), MapError> {
        for row in maps.source_ranges()? {
            self.source_ranges.entry(row.service).or_default().held.insert(row);
        }
        Ok(())
    }

    /// Rows the kernel may hold, of all service ports.
    pub(super) fn source_range_count(&self) -> usize {
        self.source_ranges.values().map(SourceRanges::len).sum()
    }

    /// Of the ranges that are wanted, how many the kernel does not hold.
    pub(super) fn new_source_ranges(&self, staged: &[Staged<A>]) -> usize {
        let is_new = |port: &Staged<A>, row| {
            self.source_ranges.get(&port.service).is_none_or(|known| !known.held.contains(row))
        };
        staged.iter().map(|port| port.source_ranges.iter().filter(|row| is_new(port, row)).count()).sum()
    }

    /// Ranges that are not there yet.
    pub(super) fn write_source_ranges(
        &mut self,
        maps: &mut impl FamilyMaps<A>,
        staged: &[Staged<A>],
    ) -> Result<Rows, MapError> {
        let mut count = 0;
        for port in staged.iter().filter(|port| !port.source_ranges.is_empty()) {
            let known = self.source_ranges.entry(port.service).or_default();
            let wanted = port.source_ranges.iter();
            let rows: Vec<_> =
                wanted.filter(|row| known.doubtful || !known.held.contains(row)).copied().collect();
            if rows.is_empty() {
                continue;
            }
            known.held.extend(&rows);
            known.doubtful = true;
            maps.put_source_ranges(&rows)?;
            known.doubtful = false;
            count += rows.len();
        }
        Ok(count)
    }

    /// Ranges that no frontend is restricted to any more.
    pub(super) fn delete_source_ranges(
        &mut self,
        maps: &mut impl FamilyMaps<A>,
        staged: &[Staged<A>],
    ) -> Result<Rows, MapError> {
        let mut count = 0;
        for port in staged {
            // One that is kept may still be restricted to any of them.
            if !self.source_ranges.contains_key(&port.service) || !self.kept(port).is_empty() {
                continue;
            }
            let Some(known) = self.source_ranges.get_mut(&port.service) else { continue };
            let wanted: HashSet<_> = port.source_ranges.iter().collect();
            let gone: Vec<_> = known.held.iter().filter(|row| !wanted.contains(row)).copied().collect();
            if !gone.is_empty() {
                // Some may be gone when this fails, and be wanted again before it succeeds.
                known.doubtful = true;
                maps.delete_source_ranges(&gone)?;
                known.doubtful = false;
                known.held.retain(|row| wanted.contains(row));
                count += gone.len();
            }
            if known.held.is_empty() {
                self.source_ranges.remove(&port.service);
            }
        }
        Ok(count)
    }

    /// Writes ranges that others removed, and removes those that nobody wanted.
    pub(super) fn repair_source_ranges(
        &self,
        maps: &mut impl FamilyMaps<A>,
        delete_unknown: bool,
    ) -> Result<Rows, MapError> {
        let actual: HashSet<_> = maps.source_ranges()?.into_iter().collect();
        let held: HashSet<_> = self.source_ranges.values().flat_map(|known| &known.held).copied().collect();
        let lost: Vec<_> = held.difference(&actual).copied().collect();
        let unknown: Vec<_> = actual.difference(&held).filter(|_| delete_unknown).copied().collect();
        if !lost.is_empty() {
            maps.put_source_ranges(&lost)?;
        }
        if !unknown.is_empty() {
            maps.delete_source_ranges(&unknown)?;
        }
        Ok(lost.len() + unknown.len())
    }
}

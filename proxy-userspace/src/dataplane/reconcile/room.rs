//! Whether a chunk has room before any of it is written: rows of half a Service would be in the way of others.

use std::collections::HashSet;

use super::{Chunk, Reconciler};
use crate::dataplane::{
    FamilyMaps, MapAddr, MapError, MapName, MapStore,
    family::{FamilyTable, Staged},
};

impl Reconciler {
    /// Ids and slots were given out before; frontends and source ranges have no such owner.
    pub(super) fn ensure_room(&self, maps: &mut impl MapStore, chunk: &Chunk) -> Result<(), MapError> {
        self.v4.ensure_room(maps.v4(), &chunk.v4)?;
        self.v6.ensure_room(maps.v6(), &chunk.v6)
    }
}

impl<A: MapAddr> FamilyTable<A> {
    fn ensure_room(&self, maps: &impl FamilyMaps<A>, staged: &[Staged<A>]) -> Result<(), MapError> {
        let ensure = |map, rows: &dyn Fn() -> usize, most: usize| {
            let capacity = maps.capacity(map);
            // Counting takes time, and nearly always there is much more room.
            let fits = most <= capacity as usize || rows() <= capacity as usize;
            if fits { Ok(()) } else { Err(MapError::Full { map, capacity }) }
        };
        let wanted = staged.iter().map(Staged::frontend_count).sum::<usize>();
        let frontends = || self.frontends_after(staged);
        ensure(MapName::Frontends, &frontends, self.frontends.len() + wanted)?;
        let held = self.source_range_count();
        let wanted = staged.iter().map(|port| port.source_ranges.len()).sum::<usize>();
        let ranges = || held + self.new_source_ranges(staged);
        ensure(MapName::SourceRanges, &ranges, held + wanted)
    }

    /// Frontends that the kernel will hold.
    fn frontends_after(&self, staged: &[Staged<A>]) -> usize {
        let wanted: HashSet<_> = staged.iter().flat_map(Staged::frontend_keys).collect();
        let gone = self.gone(staged, &wanted).len();
        let new = wanted.iter().filter(|key| !self.frontends.contains_key(*key)).count();
        self.frontends.len() + new - gone
    }
}

//! Services that find no room. They wait apart, so that nobody else waits with them; what was served of them
//! before is served on.

use std::collections::BTreeMap;

use super::{Applied, Reconciler, Waiting};
use crate::{
    dataplane::{MapError, MapName, MapStore},
    model::ObjectName,
};

/// A Service that found no room, and what is wanted for it.
#[derive(Debug)]
pub(super) struct Refused {
    waiting: Waiting,
    why: MapError,
    /// Rows in use of the map that lacked room.
    used: usize,
}

impl Reconciler {
    /// Services without room for what is wanted, and which map lacks it.
    pub fn refused(&self) -> impl Iterator<Item = (&ObjectName, &MapError)> {
        self.refused.iter().map(|(service, refused)| (service, &refused.why))
    }

    /// Number of them.
    pub fn refused_count(&self) -> usize {
        self.refused.len()
    }

    /// Tries again those that may find room now. Larger maps are no question here: whoever makes them adopts anew.
    pub fn retry_refused(&mut self, maps: &mut impl MapStore) -> Applied {
        let mut applied = Applied::default();
        for (service, refused) in std::mem::take(&mut self.refused) {
            if matches!(refused.why, MapError::TooLarge { .. }) {
                self.refused.insert(service, refused);
            } else {
                self.apply_chunk(maps, vec![(service, refused.waiting)], &mut applied);
            }
        }
        applied.failed = self.pending.len();
        applied
    }

    /// True if rows have been given back since a Service found no room for them.
    pub fn may_have_room(&self) -> bool {
        let has_fewer = |refused: &Refused| match &refused.why {
            MapError::Full { map, .. } => self.used(*map) < refused.used,
            _ => false,
        };
        self.refused.values().any(has_fewer)
    }

    /// Maps that lack room for a Service, each with the rows that the smallest of those needs by itself, if these are
    /// too many.
    pub(in crate::dataplane) fn lacking(&self) -> BTreeMap<MapName, usize> {
        let mut lacking = BTreeMap::new();
        for refused in self.refused.values() {
            let (map, rows) = match &refused.why {
                MapError::Full { map, .. } => (*map, 0),
                MapError::TooLarge { map, rows, .. } => (*map, *rows),
                MapError::Retryable { .. } | MapError::Fatal { .. } => continue,
            };
            let least = lacking.entry(map).or_insert(rows);
            *least = rows.min(*least);
        }
        lacking
    }

    /// Lets a Service wait apart. Nobody else shall lack the ids and slots that it was given in vain.
    pub(super) fn refuse(
        &mut self,
        maps: &mut impl MapStore,
        (service, waiting): (ObjectName, Waiting),
        why: MapError,
        applied: &mut Applied,
    ) {
        let ids = self.services.ids_of(&service).to_vec();
        for id in &ids {
            self.v4.drop_unwritten(*id);
            self.v6.drop_unwritten(*id);
        }
        self.departed.extend(ids.iter().filter(|id| !self.v4.has(**id) && !self.v6.has(**id)));
        self.clear(maps, applied);
        let used = match &why {
            MapError::Full { map, .. } => self.used(*map),
            _ => 0,
        };
        self.failures.remove(&service);
        self.refused.insert(service, Refused { waiting, why, used });
    }

    /// Rows of a map that are in use, of both families.
    fn used(&self, map: MapName) -> usize {
        match map {
            MapName::Services => self.services.len(),
            MapName::Frontends => self.v4.frontends.len() + self.v6.frontends.len(),
            MapName::Backends => self.v4.backends.len() + self.v6.backends.len(),
            MapName::Slots => (self.v4.ranges.used() + self.v6.ranges.used()) as usize,
            MapName::SourceRanges => self.v4.source_range_count() + self.v6.source_range_count(),
            _ => 0,
        }
    }
}

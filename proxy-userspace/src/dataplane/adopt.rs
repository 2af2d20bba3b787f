//! Reads back what an earlier agent has written, so that ids, ranges and rows stay as
//! they are: a restart that changes nothing writes nothing.

use std::collections::HashMap;

use proxy_common::maps::{
    backends::flags,
    frontends::{Frontend, FrontendKey},
    slots::SlotRange,
};

use super::{
    FamilyMaps, MapAddr, MapError,
    backends::BackendTable,
    family::{FamilyTable, Keep, Written},
    ranges::Ranges,
    slot_sets::SlotSet,
};

impl<A: MapAddr> FamilyTable<A> {
    /// Takes over what the maps of the family hold.
    pub(super) fn adopt(maps: &impl FamilyMaps<A>) -> Result<Self, MapError> {
        let mut backends = Vec::new();
        for id in 1..maps.backend_capacity() {
            let row = maps.backend(id)?;
            if row.flags & flags::PRESENT != 0 {
                backends.push((id, row));
            }
        }
        let mut table = Self {
            ports: HashMap::new(),
            frontends: HashMap::new(),
            backends: BackendTable::adopt(maps.backend_capacity(), backends),
            ranges: Ranges::new(maps.slot_capacity()),
            keys: HashMap::new(),
            source_ranges: HashMap::new(),
            keep: Keep::default(),
            doubts: HashMap::new(),
        };
        table.adopt_source_ranges(maps)?;
        let mut frontends = maps.frontends()?;
        // In the order of slots, which are read in windows.
        frontends.sort_unstable_by_key(|(key, value)| (value.cluster.offset, *key));
        for (key, value) in frontends {
            table.adopt_frontend(maps, key, value)?;
        }
        Ok(table)
    }

    fn adopt_frontend(
        &mut self,
        maps: &impl FamilyMaps<A>,
        key: FrontendKey<A>,
        value: Frontend,
    ) -> Result<(), MapError> {
        let sound = self.adopt_range(maps, value.service, value.cluster)?
            & self.adopt_range(maps, value.service, value.local)?;
        self.frontends.insert(key, Written { value, certain: sound });
        self.keys.entry(value.service).or_default().push(key);
        Ok(())
    }

    /// Takes over a range. False when it overlaps another or leads nowhere: then the
    /// frontend is written anew as soon as its service is known.
    fn adopt_range(
        &mut self,
        maps: &impl FamilyMaps<A>,
        service: u32,
        range: SlotRange,
    ) -> Result<bool, MapError> {
        let port = self.ports.entry(service).or_default();
        if range.len == 0 {
            return Ok(range.offset == 0);
        }
        if let Some(known) = port.sets.iter().find(|set| set.range == range) {
            return Ok(!known.ids().is_empty());
        }
        if !self.ranges.reserve(range) {
            return Ok(false);
        }
        let mut ids = vec![0; range.len as usize];
        maps.slots(range.offset, &mut ids)?;
        let sound = ids.iter().all(|id| self.backends.row(*id).is_some());
        if !sound {
            ids.clear();
        }
        let set = SlotSet::adopted(range, ids);
        for id in &set.members {
            self.backends.retain(*id);
        }
        port.sets.reserve_exact(1);
        port.sets.push(set);
        Ok(sound)
    }
}

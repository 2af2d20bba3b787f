//! Compares what the kernel holds with what was written, and writes again what others
//! have changed. Rows that wait for a write of their own are left to it.

use std::collections::HashMap;

use proxy_common::maps::backends::flags;

use super::{FamilyMaps, MapAddr, MapError, family::FamilyTable};

/// How many rows were found to differ, and put right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Of `frontends`.
    pub frontends: usize,
    /// Of `backends`.
    pub backends: usize,
    /// Of `slots`: ranges.
    pub slots: usize,
    /// Of `source_ranges`.
    pub source_ranges: usize,
    /// Of `services`.
    pub services: usize,
    /// Of `settings`, `node_addresses` and `service_cidrs`.
    pub node: usize,
}

impl Repairs {
    /// All of them.
    pub fn total(&self) -> usize {
        self.frontends + self.backends + self.slots + self.source_ranges + self.services + self.node
    }
}

impl<A: MapAddr> FamilyTable<A> {
    /// Repairs the maps of the family, what is named before what names it.
    pub(super) fn repair(
        &self,
        maps: &mut impl FamilyMaps<A>,
        delete_unknown: bool,
        repairs: &mut Repairs,
    ) -> Result<(), MapError> {
        repairs.backends += self.repair_backends(maps)?;
        repairs.slots += self.repair_slots(maps)?;
        repairs.source_ranges += self.repair_source_ranges(maps, delete_unknown)?;
        repairs.frontends += self.repair_frontends(maps, delete_unknown)?;
        Ok(())
    }

    fn repair_backends(&self, maps: &mut impl FamilyMaps<A>) -> Result<usize, MapError> {
        let mut rows = Vec::new();
        for id in 1..maps.backend_capacity() {
            let Some(expected) = self.backends.expected(id) else { continue };
            let actual = maps.backend(id)?;
            if actual != expected && (actual.flags | expected.flags) & flags::PRESENT != 0 {
                rows.push((id, expected));
            }
        }
        if !rows.is_empty() {
            maps.put_backends(&rows)?;
        }
        Ok(rows.len())
    }

    fn repair_slots(&self, maps: &mut impl FamilyMaps<A>) -> Result<usize, MapError> {
        let mut count = 0;
        let mut actual = Vec::new();
        let sets = self.ports.values().flat_map(|port| &port.sets);
        for set in sets.filter(|set| set.written && !set.ids.is_empty()) {
            actual.resize(set.ids.len(), 0);
            maps.slots(set.range.offset, &mut actual)?;
            if *actual != *set.ids {
                maps.put_slots(set.range.offset, &set.ids)?;
                count += 1;
            }
        }
        Ok(count)
    }

    fn repair_frontends(
        &self,
        maps: &mut impl FamilyMaps<A>,
        delete_unknown: bool,
    ) -> Result<usize, MapError> {
        let actual: HashMap<_, _> = maps.frontends()?.into_iter().collect();
        let certain = self.frontends.iter().filter(|(_, written)| written.certain);
        let rows: Vec<_> = certain
            .filter(|(key, written)| actual.get(key) != Some(&written.value))
            .map(|(key, written)| (*key, written.value))
            .collect();
        if !rows.is_empty() {
            maps.put_frontends(&rows)?;
        }
        let unknown = actual.keys().filter(|key| delete_unknown && !self.frontends.contains_key(key));
        let unknown: Vec<_> = unknown.copied().collect();
        if !unknown.is_empty() {
            maps.delete_frontends(&unknown)?;
        }
        Ok(rows.len() + unknown.len())
    }
}

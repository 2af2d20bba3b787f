//! Compares what the kernel holds with what was written, and writes again what others
//! have changed. Rows that wait for a write of their own are left to it.

use std::collections::HashSet;

use proxy_common::maps::backends::flags;

use super::{FamilyMaps, MapAddr, MapError, MapStore, Reconciler, family::FamilyTable, node};

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

impl Reconciler {
    /// Compares everything with the kernel and repairs what others have changed.
    pub fn full_sync(&mut self, maps: &mut impl MapStore) -> Result<Repairs, MapError> {
        let mut repairs = Repairs::default();
        self.v4.repair(maps.v4(), self.pruned, &mut repairs)?;
        self.v6.repair(maps.v6(), self.pruned, &mut repairs)?;
        repairs.services = self.repair_services(maps)?;
        if let Some(plan) = self.node.as_ref().filter(|_| !self.node_pending) {
            repairs.node = node::write(maps, plan)?;
        }
        Ok(repairs)
    }

    fn repair_services(&self, maps: &mut impl MapStore) -> Result<usize, MapError> {
        let (mut found, mut unknown) = (HashSet::new(), HashSet::new());
        maps.each_service(&mut |id, row| match self.services.expected_row(id) {
            Some(expected) if expected == *row => {
                found.insert(id);
            }
            Some(_) => (),
            None => {
                unknown.insert(id);
            }
        })?;
        let rows: Vec<_> = self.services.expected().filter(|(id, _)| !found.contains(id)).collect();
        if !rows.is_empty() {
            maps.put_services(&rows)?;
        }
        let unknown: Vec<_> = unknown.into_iter().filter(|_| self.pruned).collect();
        if !unknown.is_empty() {
            maps.delete_services(&unknown)?;
        }
        Ok(rows.len() + unknown.len())
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
        let mut sets: Vec<_> = sets.filter(|set| set.written && !set.ids().is_empty()).collect();
        // In the order of slots, which are read in windows.
        sets.sort_unstable_by_key(|set| set.range.offset);
        for set in sets {
            actual.resize(set.ids().len(), 0);
            maps.slots(set.range.offset, &mut actual)?;
            if *actual != *set.ids() {
                maps.put_slots(set.range.offset, set.ids())?;
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
        let (mut found, mut unknown) = (HashSet::with_capacity(self.frontends.len()), HashSet::new());
        maps.each_frontend(&mut |key, value| match self.frontends.get(key) {
            Some(written) if written.value == *value => {
                found.insert(*key);
            }
            Some(_) => (),
            None => {
                unknown.insert(*key);
            }
        })?;
        let certain = self.frontends.iter().filter(|(_, written)| written.certain);
        let rows: Vec<_> = certain
            .filter(|(key, _)| !found.contains(*key))
            .map(|(key, written)| (*key, written.value))
            .collect();
        drop(found);
        if !rows.is_empty() {
            maps.put_frontends(&rows)?;
        }
        let unknown: Vec<_> = unknown.into_iter().filter(|_| delete_unknown).collect();
        if !unknown.is_empty() {
            maps.delete_frontends(&unknown)?;
        }
        Ok(rows.len() + unknown.len())
    }
}

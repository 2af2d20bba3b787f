//! A copy of all rows that the dataplane reconciles, to try on it what would be written.

use aya::maps::{Array, Map, MapData};
use proxy_common::maps::settings::Settings;

use super::PinnedMaps;
use crate::{
    dataplane::{MapAddr, MemoryFamily, MemoryMaps, Room},
    kernel::{
        KernelAddr, KernelError, object,
        trie::{service_cidrs, source_ranges},
    },
};

impl PinnedMaps {
    /// The rows that the dataplane writes, in memory, and as much room as the maps have. The kernel's
    /// are only read.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn copy(&self) -> Result<MemoryMaps, KernelError> {
        let room = Room {
            services: self.size("services")?.capacity,
            frontends: self.size("frontends_v4")?.capacity,
            backends: self.size("backends_v4")?.capacity,
            slots: self.size("slots_v4")?.capacity,
            source_ranges: self.size("source_ranges_v4")?.capacity,
        };
        let mut copy = MemoryMaps::with_room(room);
        copy.services = self.services()?.into_iter().collect();
        copy.settings = self.settings()?;
        self.copy_family(&mut copy.v4)?;
        self.copy_family(&mut copy.v6)?;
        Ok(copy)
    }

    fn copy_family<A: KernelAddr + MapAddr>(&self, copy: &mut MemoryFamily<A>) -> Result<(), KernelError> {
        let names = A::PINS.0;
        copy.frontends = self.frontends()?.into_iter().collect();
        copy.backends = self.array(names.backends)?;
        copy.slots = self.array(names.slots)?;
        copy.node_addresses = self.node_addresses()?.into_iter().collect();
        copy.service_cidrs = service_cidrs(&self.pins)?;
        copy.source_ranges = source_ranges(&self.pins)?.into_iter().map(|row| (row, ())).collect();
        Ok(())
    }

    /// The row of `settings`.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn settings(&self) -> Result<Settings, KernelError> {
        let error = |source| KernelError::Map { name: "settings", source };
        let map: Map = object::pinned(&self.pins, "settings")?;
        let settings: Array<MapData, Settings> = map.try_into().map_err(error)?;
        settings.get(&0, 0).map_err(error)
    }
}

//! A copy of all rows that the dataplane reconciles, to try on it what would be written.

use aya::maps::{Array, Map, MapData, MapInfo};
use proxy_common::maps::settings::Settings;

use super::PinnedMaps;
use crate::{
    dataplane::{MapAddr, MemoryFamily, MemoryMaps, Room},
    kernel::{
        KernelAddr, KernelError,
        family::{service_cidrs, source_ranges},
        object,
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
            services: self.capacity("services")?,
            frontends: self.capacity("frontends_v4")?,
            backends: self.capacity("backends_v4")?,
            slots: self.capacity("slots_v4")?,
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

    /// Rows that a map of this family has room for.
    ///
    /// # Errors
    /// When there is no such map.
    pub fn capacity_of<A: KernelAddr>(&self, map: &str) -> Result<u32, KernelError> {
        let names = A::PINS.0;
        let pins = [
            names.frontends,
            names.backends,
            names.slots,
            names.conntrack,
            names.affinity,
            names.opened,
            names.traffic,
        ];
        let name =
            pins.into_iter().find(|name| name.strip_prefix(map).is_some_and(|rest| rest.starts_with("_v")));
        self.capacity(name.unwrap_or("(none)"))
    }

    /// Rows that a map has room for.
    ///
    /// # Errors
    /// When there is no such map.
    pub fn capacity(&self, name: &'static str) -> Result<u32, KernelError> {
        let info = MapInfo::from_pin(self.pins.map(name));
        info.map(|info| info.max_entries()).map_err(|source| KernelError::Map { name, source })
    }
}

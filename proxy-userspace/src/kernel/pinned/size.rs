//! How large maps are, and the memory that they take.

use std::{
    fs,
    os::fd::{AsFd as _, AsRawFd as _},
    path::PathBuf,
};

use aya::maps::{MapData, MapInfo};

use super::PinnedMaps;
use crate::kernel::{KernelAddr, KernelError, conntrack_bytes};

/// Of a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapSize {
    /// Rows that it has room for.
    pub capacity: u32,
    /// Bytes of kernel memory that it takes, as the kernel counts them (`memlock` of `bpftool map show`).
    pub memory: u64,
}

impl PinnedMaps {
    /// The size of a map of this family, which holds so many rows. Of `conntrack` the memory is that which
    /// the rows really take, with their queues.
    ///
    /// # Errors
    /// When there is no such map, or it cannot be looked at.
    pub fn size_of<A: KernelAddr>(&self, map: &str, rows: u64) -> Result<MapSize, KernelError> {
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
        let size = self.size(name.unwrap_or("(none)"))?;
        let is_conntrack = name == Some(names.conntrack);
        Ok(if is_conntrack {
            MapSize { memory: conntrack_bytes::<A>(size.capacity, rows), ..size }
        } else {
            size
        })
    }

    /// The size of a map.
    ///
    /// # Errors
    /// When there is no such map, or it cannot be looked at.
    pub fn size(&self, name: &'static str) -> Result<MapSize, KernelError> {
        let error = |source| KernelError::Map { name, source };
        let path = self.pins.map(name);
        let capacity = MapInfo::from_pin(&path).map_err(error)?.max_entries();
        let map = MapData::from_pin(&path).map_err(error)?;
        let path = PathBuf::from(format!("/proc/self/fdinfo/{}", map.fd().as_fd().as_raw_fd()));
        let text = fs::read_to_string(&path).map_err(|source| KernelError::File {
            what: "cannot read the memory of a map from",
            path,
            source,
        })?;
        let memory = text.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok());
        Ok(MapSize { capacity, memory: memory.unwrap_or_default() })
    }
}

//! How much fits.

/// Rows that maps have room for; of frontends, backends and slots in each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the maps")]
pub struct Room {
    pub services: u32,
    pub frontends: u32,
    pub backends: u32,
    pub slots: u32,
    pub source_ranges: u32,
}

impl Room {
    /// This capacity for each map.
    pub fn each(capacity: u32) -> Self {
        Self {
            services: capacity,
            frontends: capacity,
            backends: capacity,
            slots: capacity,
            source_ranges: capacity,
        }
    }
}

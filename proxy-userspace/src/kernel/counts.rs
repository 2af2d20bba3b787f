//! Counters that programs keep for each CPU: added up when they are read.

use std::{collections::HashMap, hash::Hash, io};

use aya::Pod;

use super::{
    bpf::{RawMap, typed},
    pins::Pins,
};

/// The rows of the map called `name`, whose values are counts.
///
/// # Errors
/// When there is no such map, or it has other rows.
pub(super) fn counts<K: Pod + Eq + Hash>(pins: &Pins, name: &str) -> io::Result<Vec<(K, u64)>> {
    let map = RawMap::open(&pins.map(name))?;
    if (map.key_size(), map.value_size()) != (size_of::<K>(), size_of::<u64>()) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an agent of another version made it"));
    }
    // The kernel may show a row twice when others are deleted meanwhile.
    let mut rows = HashMap::new();
    map.each(|key, value| {
        let (each, _) = value.as_chunks();
        let sum = each.iter().copied().map(u64::from_ne_bytes).fold(0, u64::wrapping_add);
        rows.extend(typed(key).map(|key: K| (key, sum)));
        Ok(())
    })?;
    Ok(rows.into_iter().collect())
}

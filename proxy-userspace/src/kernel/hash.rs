//! Hash maps, read and written in batches by system calls.

use std::{collections::HashMap, io, os::fd::AsFd};

use aya::{Pod, maps::MapData};

use super::{bpf, error::KernelError, pins::Pins};
use crate::dataplane::{MapError, MapName};

/// A pinned map that is used by system calls.
pub(super) struct HashTable {
    data: MapData,
    name: MapName,
}

impl HashTable {
    pub(super) fn open(pins: &Pins, pin: &'static str, name: MapName) -> Result<Self, KernelError> {
        let data =
            MapData::from_pin(pins.map(pin)).map_err(|source| KernelError::Map { name: pin, source })?;
        Ok(Self { data, name })
    }

    pub(super) fn capacity(&self) -> u32 {
        self.data.info().map_or(0, |info| info.max_entries())
    }

    pub(super) fn error(&self, what: String, source: io::Error) -> MapError {
        // A hash map answers E2BIG, one without preallocation ENOMEM when its memory is used up.
        match source.raw_os_error() {
            Some(libc::E2BIG | libc::ENOSPC) => MapError::Full { map: self.name, capacity: self.capacity() },
            Some(libc::EBADF | libc::EINVAL | libc::EPERM) => MapError::Fatal { map: self.name, source },
            _ => MapError::Retryable { map: self.name, what, source },
        }
    }

    pub(super) fn each<K: Pod, V: Pod>(&self, visit: impl FnMut(K, V)) -> Result<(), MapError> {
        bpf::lookup_all(self.data.fd().as_fd(), visit).map_err(|e| self.error("read the rows".into(), e))
    }

    pub(super) fn rows<K: Pod + Eq + std::hash::Hash, V: Pod>(&self) -> Result<Vec<(K, V)>, MapError> {
        // The kernel may show a row twice when others are deleted meanwhile.
        let mut rows = HashMap::new();
        self.each(|k, v| {
            rows.insert(k, v);
        })?;
        Ok(rows.into_iter().collect())
    }

    pub(super) fn put<K: Pod, V: Pod>(&mut self, rows: &[(K, V)]) -> Result<(), MapError> {
        let (keys, values): (Vec<K>, Vec<V>) = rows.iter().copied().unzip();
        bpf::update_batch(self.data.fd().as_fd(), &keys, &values)
            .map_err(|(done, e)| self.error(format!("write {} rows", rows.len() - done), e))
    }

    pub(super) fn delete<K: Pod>(&mut self, mut keys: &[K]) -> Result<(), MapError> {
        while !keys.is_empty() {
            match bpf::delete_batch(self.data.fd().as_fd(), keys) {
                Ok(()) => break,
                // That row is gone already: go on behind it.
                Err((done, e)) if e.raw_os_error() == Some(libc::ENOENT) => keys = &keys[done + 1..],
                Err((done, e)) => return Err(self.error(format!("delete {} rows", keys.len() - done), e)),
            }
        }
        Ok(())
    }
}

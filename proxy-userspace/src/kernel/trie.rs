//! Tries of prefixes, read and written row by row.

use std::io;

use aya::{
    Pod,
    maps::{IterableMap as _, LpmTrie, MapData, lpm_trie::Key},
};
use proxy_common::maps::{service_cidrs::Prefix, source_ranges::SourceRange};

use super::{error::KernelError, family::KernelAddr, object, pins::Pins};
use crate::dataplane::{MapError, MapName};

/// Opens what is pinned.
pub(super) fn open<K: Pod>(pins: &Pins, name: &'static str) -> Result<LpmTrie<MapData, K, u32>, KernelError> {
    let map = object::pinned(pins, name)?;
    LpmTrie::try_from(map).map_err(|source| KernelError::Map { name, source })
}

/// `SourceRange` without its length, which aya's key has.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ServiceAddr<A> {
    service: u32,
    addr: A,
}

// SAFETY: a u32 and an address aligned like it: no padding, any bits are valid.
unsafe impl<A: KernelAddr> Pod for ServiceAddr<A> {}

/// The key of a row.
pub(super) fn range_key<A: KernelAddr>(row: &SourceRange<A>) -> Key<ServiceAddr<A>> {
    Key::new(row.bits, ServiceAddr { service: row.service, addr: row.addr })
}

/// The rows of a trie of service ranges.
pub(super) fn cidr_rows<A: KernelAddr>(trie: &LpmTrie<MapData, A, u32>) -> Result<Vec<Prefix<A>>, MapError> {
    trie.keys()
        .map(|key| key.map(|k| Prefix { bits: k.prefix_len(), addr: k.data() }))
        .collect::<Result<_, _>>()
        .map_err(trie_error(MapName::ServiceCidrs, "read the rows"))
}

/// The rows of a trie of source ranges.
pub(super) fn range_rows<A: KernelAddr>(
    trie: &LpmTrie<MapData, ServiceAddr<A>, u32>,
) -> Result<Vec<SourceRange<A>>, MapError> {
    let row = |k: Key<ServiceAddr<A>>| {
        let ServiceAddr { service, addr } = k.data();
        SourceRange { bits: k.prefix_len(), service, addr }
    };
    trie.keys()
        .map(|key| key.map(row))
        .collect::<Result<_, _>>()
        .map_err(trie_error(MapName::SourceRanges, "read the rows"))
}

/// The pinned rows of `service_cidrs`.
pub(super) fn service_cidrs<A: KernelAddr>(pins: &Pins) -> Result<Vec<Prefix<A>>, KernelError> {
    Ok(cidr_rows(&open(pins, A::PINS.0.service_cidrs)?)?)
}

/// The pinned rows of `source_ranges`.
pub(super) fn source_ranges<A: KernelAddr>(pins: &Pins) -> Result<Vec<SourceRange<A>>, KernelError> {
    Ok(range_rows(&open(pins, A::PINS.0.source_ranges)?)?)
}

/// Rows that a trie has room for.
pub(super) fn capacity<K: Pod>(trie: &LpmTrie<MapData, K, u32>) -> u32 {
    trie.map().info().map_or(0, |info| info.max_entries())
}

/// Why rows of a trie could not be read or written.
pub(super) fn trie_error(map: MapName, what: &str) -> impl Fn(aya::maps::MapError) -> MapError + '_ {
    move |e| MapError::Retryable { map, what: what.to_owned(), source: io::Error::other(e) }
}

/// Why a row could not be written to a trie.
pub(super) fn write_error<K: Pod>(
    trie: &LpmTrie<MapData, K, u32>,
    map: MapName,
    error: aya::maps::MapError,
) -> MapError {
    match &error {
        aya::maps::MapError::SyscallError(failed) if failed.io_error.raw_os_error() == Some(libc::ENOSPC) => {
            MapError::Full { map, capacity: capacity(trie) }
        }
        _ => trie_error(map, "write a row")(error),
    }
}

/// Deletes a row, if it is there.
pub(super) fn delete_from<K: Pod>(
    trie: &mut LpmTrie<MapData, K, u32>,
    key: &Key<K>,
    map: MapName,
) -> Result<(), MapError> {
    match trie.remove(key) {
        Ok(()) | Err(aya::maps::MapError::KeyNotFound) => Ok(()),
        Err(e) => Err(trie_error(map, "delete a row")(e)),
    }
}

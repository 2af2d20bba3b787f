//! Kernel memory that `conntrack` takes with its queues, and how many rows fit in a limit.
//!
//! `bpftool map show` counts a row as the kernel's `htab_elem` with key and value (`memlock`). What the
//! kernel really sets aside is more: rows come from slabs (`kernel/bpf/memalloc.c`), whose objects are of
//! certain sizes. Measured with Linux 6.18 by the memory cgroup: 200 bytes for a row of IPv4, 264 of IPv6.

use proxy_common::{
    addr::{Ip4, Ip6},
    maps::{
        conntrack::{CtEntry, CtKey},
        transient::{self, Place},
    },
};

/// Of `struct htab_elem` without key and value, and the link of a free one (`LLIST_NODE_SZ`).
const HEADER: usize = 56 + 8;
/// What a memory cgroup keeps for an object (`struct slabobj_ext`).
const ACCOUNTING: usize = 8;
/// Of `struct bucket`. There is one for each row that a hash has room for, and more up to a power of two.
const BUCKET: u64 = 16;
/// A hash has no more buckets (`htab_map_alloc`).
const MOST: u32 = 1 << 28;
/// Sizes of slab objects that are no power of two (`mm/slab_common.c`).
const ODD_SLABS: [usize; 2] = [96, 192];

/// Bytes of an object that has room for `size`.
const fn slab(size: usize) -> usize {
    let mut least = size.next_power_of_two();
    let mut index = 0;
    while index < ODD_SLABS.len() {
        if ODD_SLABS[index] >= size && ODD_SLABS[index] < least {
            least = ODD_SLABS[index];
        }
        index += 1;
    }
    least
}

/// Bytes of a row of this family.
const fn row<A>() -> u64 {
    let key = size_of::<CtKey<A>>().next_multiple_of(8);
    let entry = size_of::<CtEntry<A>>().next_multiple_of(8);
    (slab(HEADER + key + entry) + ACCOUNTING) as u64
}

/// Bytes that the maps of one family take, with room for `capacity` rows and so many in use.
pub fn conntrack_bytes<A>(capacity: u32, rows: u64) -> u64 {
    let buckets = u64::from(capacity).next_power_of_two() * BUCKET;
    let place = size_of::<Place<A>>().next_multiple_of(8) as u64;
    buckets + u64::from(transient::capacity(capacity)) * place + rows * row::<A>()
}

/// Bytes that the maps of both families take when they are full.
pub fn full_conntrack_bytes(capacity: u32) -> u64 {
    let full = u64::from(capacity);
    conntrack_bytes::<Ip4>(capacity, full) + conntrack_bytes::<Ip6>(capacity, full)
}

/// The most rows for each family that take no more than so many bytes, 0 if there is room for none.
pub fn conntrack_rows_within(bytes: u64) -> u32 {
    // By halving: more rows never take less.
    let (mut fits, mut too_many) = (0, MOST + 1);
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if full_conntrack_bytes(middle) <= bytes { fits = middle } else { too_many = middle }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_takes_what_was_measured() {
        assert_eq!((row::<Ip4>(), row::<Ip6>()), (200, 264));
        assert_eq!([1, 64, 65, 97, 129, 192, 193, 257].map(slab), [1, 64, 96, 128, 192, 192, 256, 512]);
    }

    #[test]
    fn as_many_rows_as_fit() {
        for bytes in [10_000, 1 << 20, 134_000_000, 1 << 30, 1 << 40] {
            let rows = conntrack_rows_within(bytes);
            assert!(full_conntrack_bytes(rows) <= bytes, "{rows} rows in {bytes}");
            assert!(rows == MOST || full_conntrack_bytes(rows + 1) > bytes, "{rows} rows in {bytes}");
        }
        assert_eq!(conntrack_rows_within(0), 0);
        let default = full_conntrack_bytes(proxy_common::maps::conntrack::CAPACITY);
        assert_eq!(default.div_ceil(1 << 20), 128, "what the documentation says");
    }
}

//! ClientIP session affinity: a client goes where its last connection went.
//!
//! A row counts only while the backend it names is among the candidates, so that a
//! backend that is gone or no longer ready takes no further connection.

use core::ffi::c_void;

use aya_ebpf::helpers::generated as helper;
use proxy_common::maps::{
    affinity::{Affinity, AffinityKey},
    slots::SlotRange,
};

use super::conntrack::now;
use crate::maps::{self, Tables};

/// Candidates looked through for a backend whose slot has moved. A lookup table has each of
/// its backends many times, so that even in the largest one it is found early.
const SEARCH: u32 = 65_536;

/// The slot of the backend that the client's last connection went to.
#[inline(always)]
pub fn recall<A: Tables>(key: &AffinityKey<A>, timeout_secs: u32, range: SlotRange) -> Option<u32> {
    let row = maps::affinity(key)?;
    if now().wrapping_sub(row.last_used) > u64::from(timeout_secs) * 1_000_000_000 {
        return None;
    }
    let slot = find::<A>(row, range)?;
    row.slot = slot;
    row.last_used = now();
    Some(slot)
}

/// Notes where the client's connection goes.
#[inline(always)]
pub fn note<A: Tables>(key: &AffinityKey<A>, backend: u32, slot: u32) {
    maps::put_affinity(key, &Affinity { last_used: now(), backend, slot });
}

/// Where the backend is among the candidates. After an update of the service they lie in
/// another range: then, once per client, all are looked at.
#[inline(always)]
fn find<A: Tables>(row: &Affinity, range: SlotRange) -> Option<u32> {
    let inside = row.slot.wrapping_sub(range.offset) < range.len;
    if inside && maps::slot::<A>(row.slot) == Some(row.backend) {
        return Some(row.slot);
    }
    let mut search = Search { range, backend: row.backend, found: None };
    let rounds = if range.len < SEARCH { range.len } else { SEARCH };
    // SAFETY: the callback is given `search`, which outlives the call.
    unsafe {
        helper::bpf_loop(rounds, compare::<A> as *const () as *mut c_void, (&raw mut search).cast(), 0)
    };
    search.found
}

struct Search {
    range: SlotRange,
    backend: u32,
    found: Option<u32>,
}

/// One round: 1 ends the search.
extern "C" fn compare<A: Tables>(round: u32, search: *mut Search) -> i64 {
    // SAFETY: `find` passes a Search that lives on its stack during the loop.
    let search = unsafe { &mut *search };
    let slot = search.range.offset.wrapping_add(round);
    if maps::slot::<A>(slot) == Some(search.backend) {
        search.found = Some(slot);
        return 1;
    }
    0
}

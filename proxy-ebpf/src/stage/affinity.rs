//! ClientIP session affinity: a client goes where its last connection went.
//!
//! A row counts only while the backend it names is among the candidates, so that a
//! backend that is gone or no longer ready takes no further connection.

use core::ffi::c_void;

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    hash,
    maps::{
        affinity::{Affinity, AffinityKey},
        frontends::{Frontend, flags::MAGLEV},
        slots::SlotRange,
    },
};

use super::conntrack::now;
use crate::{
    global::global_by_family,
    maps::{self, Tables},
};

/// Candidates looked through for a backend whose slot has moved. A lookup table has each of
/// its backends many times, so that even in the largest one it is found early.
const SEARCH: u32 = 65_536;
/// No slot.
const NONE: u32 = u32::MAX;
/// The number of no backend.
const NOBODY: u32 = 0;

/// The slot where the backend of the client's last connection is likely to be.
#[inline(always)]
pub fn recall<A: Tables>(key: &AffinityKey<A>, range: SlotRange) -> Option<u32> {
    let row = maps::affinity(key)?;
    // SAFETY: as in `renew`.
    let slot = unsafe { (&raw const (*row).slot).read_volatile() };
    (slot.wrapping_sub(range.offset) < range.len).then_some(slot)
}

/// [`settle`] for the packet that this program has parsed, and the frontend that it has found.
#[inline(always)]
pub fn settle_packet<A: Tables>(range: SlotRange, draw: u32) -> u32 {
    settle_in_room::<A>(range.offset, range.len, draw)
}

global_by_family! {
    fn settle_in_room(offset: u32, len: u32, draw: u32) = settle_parsed as shunt_settle4, shunt_settle6;
}

#[inline(always)]
fn settle_parsed<A: Tables>(offset: u32, len: u32, draw: u32) -> u32 {
    let (Some(parsed), Some(frontend)) = (maps::parsed::<A>(), maps::frontend_room::<A>()) else {
        return NOBODY;
    };
    settle(&parsed.tuple.src, frontend, SlotRange { offset, len }, draw)
}

/// The backend that the client's connections go to from now on: that of its last one, or else the one that
/// `draw` names; [`NOBODY`] if there is no such slot: the map is not what it should be. Connections that it opens
/// at the same time go to the same.
#[inline(always)]
pub fn settle<A: Tables>(client: &A, frontend: &Frontend, range: SlotRange, draw: u32) -> u32 {
    let key = &AffinityKey { client: *client, service: frontend.service };
    let Some(row) = maps::affinity(key) else {
        let slot = range.index(draw);
        let Some(backend) = maps::slot::<A>(slot) else { return NOBODY };
        if maps::claim_affinity(key, &Affinity { last_used: now(), backend, slot }) {
            return backend;
        }
        // Another of the client's connections has just taken one. If the map has no room, there is none.
        let theirs = maps::affinity(key).and_then(|row| renew::<A>(row, frontend.affinity_secs, range).ok());
        return theirs.unwrap_or(backend);
    };
    let salt = match renew::<A>(row, frontend.affinity_secs, range) {
        Ok(backend) => return backend,
        Err(salt) => salt,
    };
    // Of what the row says, so that all that find it draw the same.
    let is_same_everywhere = frontend.flags & MAGLEV != 0;
    let draw = if is_same_everywhere { draw } else { hash::words(key.client.words(), salt, 0) };
    let slot = range.index(draw);
    let Some(backend) = maps::slot::<A>(slot) else { return NOBODY };
    // SAFETY: as in `renew`. The time comes last: until then the row holds for nobody.
    unsafe {
        (&raw mut (*row).backend).write_volatile(backend);
        (&raw mut (*row).slot).write_volatile(slot);
        (&raw mut (*row).last_used).write_volatile(now());
    }
    backend
}

/// The row's backend, which is used again now.
///
/// # Errors
/// When it was last used, in part, if that is too long ago; its backend, if that takes no more connections.
#[inline(always)]
fn renew<A: Tables>(row: *mut Affinity, timeout_secs: u32, range: SlotRange) -> Result<u32, u32> {
    // SAFETY: a row of the map, which stays in place until the program ends; each field is read once, and
    // one that another CPU writes meanwhile is an old or a new one.
    let last_used = unsafe { (&raw const (*row).last_used).read_volatile() };
    if now().wrapping_sub(last_used) > u64::from(timeout_secs) * 1_000_000_000 {
        return Err(last_used as u32);
    }
    // SAFETY: as above.
    let (backend, slot) =
        unsafe { ((&raw const (*row).backend).read_volatile(), (&raw const (*row).slot).read_volatile()) };
    let slot = find::<A>(backend, slot, range).ok_or(backend)?;
    // SAFETY: as above.
    unsafe {
        (&raw mut (*row).slot).write_volatile(slot);
        (&raw mut (*row).last_used).write_volatile(now());
    }
    Ok(backend)
}

/// Where the backend is among the candidates. After an update of the service they lie in
/// another range: then, once per client, all are looked at.
#[inline(always)]
fn find<A: Tables>(backend: u32, slot: u32, range: SlotRange) -> Option<u32> {
    let inside = slot.wrapping_sub(range.offset) < range.len;
    if inside && maps::slot::<A>(slot) == Some(backend) {
        return Some(slot);
    }
    let found = look_for::<A>(backend, range.offset, range.len);
    (found != NONE).then_some(found)
}

global_by_family! {
    fn look_for(backend: u32, offset: u32, len: u32) = search as shunt_find_slot4, shunt_find_slot6;
}

/// The first of `len` slots from `offset` on that leads to the backend, or [`NONE`].
#[inline(always)]
fn search<A: Tables>(backend: u32, offset: u32, len: u32) -> u32 {
    let mut search = Search { offset, backend, found: NONE };
    let rounds = if len < SEARCH { len } else { SEARCH };
    // SAFETY: the callback is given `search`, which outlives the call.
    unsafe {
        helper::bpf_loop(rounds, compare::<A> as *const () as *mut c_void, (&raw mut search).cast(), 0)
    };
    search.found
}

struct Search {
    offset: u32,
    backend: u32,
    /// [`NONE`] until it is found.
    found: u32,
}

/// One round: 1 ends the search.
extern "C" fn compare<A: Tables>(round: u32, search: *mut Search) -> i64 {
    // SAFETY: `search` passes a Search that lives on its stack during the loop.
    let search = unsafe { &mut *search };
    let slot = search.offset.wrapping_add(round);
    if maps::slot::<A>(slot) == Some(search.backend) {
        search.found = slot;
        return 1;
    }
    0
}

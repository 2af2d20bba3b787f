//! Rows of the connection table: remove them. What they have counted is kept.

use core::{ffi::c_void, ptr};

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    DropReason,
    maps::conntrack::{CtEntry, CtKey, Role, flags::SNAT},
};

use crate::maps::{self, Claim, Room, Tables};

/// No connection has more.
const ROWS: u32 = 4;

/// Removes a row, if there is one; true for the one who does it.
#[inline(always)]
pub fn retire<A: Tables>(key: &CtKey<A>) -> bool {
    let Some(entry) = maps::other_row(key) else { return false };
    let has_counted = note(entry);
    let is_removed = maps::conntrack_remove(key);
    if has_counted && is_removed {
        keep::<A>();
    }
    is_removed
}

/// Keeps what a row has counted whose place another is about to take.
#[inline(always)]
pub fn settle<A: Tables>(entry: &CtEntry<A>) {
    if note(entry) {
        keep::<A>();
    }
}

/// Enters a row, in the place of one that is over.
///
/// # Errors
/// When the kernel has no room.
#[inline(always)]
pub fn replace<A: Tables>(key: &CtKey<A>, row: &mut CtEntry<A>) -> Result<(), DropReason> {
    if maps::conntrack_claim(key, row) == Claim::Entered {
        return Ok(());
    }
    retire(key);
    maps::conntrack_put(key, row)
}

/// Removes all rows of a connection: of that whose replies, or only row, meet the key in the room. True for the
/// one who does it. Others that have taken the place of one of them stay.
///
/// In a loop, for the stack: each round has the room of the one before.
#[inline(always)]
pub fn retire_all<A: Tables>() -> bool {
    // SAFETY: the callback takes no context.
    unsafe { helper::bpf_loop(ROWS, retire_next::<A> as *const () as *mut c_void, ptr::null_mut(), 0) };
    maps::carried::<A>().is_some_and(|carried| carried.is_removed != 0)
}

/// One round: 1 ends the loop.
extern "C" fn retire_next<A: Tables>(round: u32, _: *mut c_void) -> i64 {
    let Some(Room { key, other_key, carried, .. }) = maps::room::<A>() else { return 1 };
    carried.is_removed = 0;
    let Some(last) = maps::candidate(key) else { return 1 };
    let next = next(round, last, key, other_key);
    if next == Next::Kept {
        return 0;
    }
    let has_other = next == Next::Other;
    let is_removed = retire(if has_other { other_key } else { key });
    if has_other {
        return 0;
    }
    if let Some(carried) = maps::carried::<A>() {
        carried.is_removed = is_removed.into();
    }
    1
}

/// What goes in a round.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    /// The other row.
    Other,
    /// Nothing: the other row is lost, or belongs to another connection.
    Kept,
    /// The row by which all are found: no other is left.
    Last,
}

/// Says which row goes in this round. `other` becomes the key of the other row; `last` is that by which all are
/// found, its key `own`.
#[inline(always)]
fn next<A: Tables>(round: u32, last: &CtEntry<A>, own: &CtKey<A>, other: &mut CtKey<A>) -> Next {
    if Role(last.role).is_alone() {
        return Next::Last;
    }
    if round == 0 {
        other.set_pair(last, own.proto, own.hook);
        return match maps::other_row(other) {
            Some(pair) if own.is_undone_by(pair) => Next::Other,
            // The client has gone on by another port, or another frontend has led it to the same backend.
            Some(_) if last.role != Role::REV_DNAT.0 => Next::Last,
            // The client has opened another connection to the frontend, or the row is lost.
            _ => Next::Kept,
        };
    }
    if last.role == Role::REV_SNAT.0 && round < ROWS - 1 {
        if round == 1 {
            other.set_next(last, own.proto);
            return Next::Other;
        }
        other.set_first(last, own.proto);
        // The client has opened another connection to the frontend.
        let is_to = |first: &mut CtEntry<A>| first.dst == own.src && first.dport == own.sport;
        return if maps::other_row(other).is_some_and(is_to) { Next::Other } else { Next::Kept };
    }
    if last.role == Role::REV_DNAT.0 && last.flags & SNAT != 0 && round == 1 {
        other.set_reversed(own);
        return Next::Other;
    }
    Next::Last
}

/// Puts what the row has counted into the room for it; false if there is nothing.
#[inline(always)]
fn note<A: Tables>(row: &CtEntry<A>) -> bool {
    let (Some(key), Some(carried)) = (row.counter_key(), maps::carried::<A>()) else { return false };
    carried.key = key.by_programs();
    carried.traffic = row.traffic();
    carried.traffic.in_packets | carried.traffic.out_packets != 0
}

#[inline(always)]
fn keep<A: Tables>() {
    if let Some(carried) = maps::carried::<A>() {
        maps::add_traffic::<A>(&carried.key, &carried.traffic);
    }
}

//! Rows of the connection table: remove them. What they have counted is kept.

use core::{ffi::c_void, ptr};

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    DropReason,
    maps::conntrack::{CtEntry, CtKey, INGRESS, Role, flags::SNAT},
};

use crate::maps::{self, Claim, Room, Tables};

/// No connection has more.
const ROWS: u32 = 4;

/// Removes a row, if there is one; true for the one who does it.
#[inline(always)]
pub fn retire<A: Tables>(key: &CtKey<A>) -> bool {
    let Some(row) = maps::conntrack(key) else { return false };
    // Before it goes: the kernel uses it again at once.
    let has_counted = note(row);
    let is_removed = maps::conntrack_remove(key);
    if has_counted && is_removed {
        keep::<A>();
    }
    is_removed
}

/// Keeps what a row has counted that becomes another connection's.
#[inline(always)]
pub fn settle<A: Tables>(row: &mut CtEntry<A>) {
    if note(row) {
        keep::<A>();
    }
    (row.packets, row.bytes) = (0, 0);
}

/// Enters a row, in the place of one that is over.
///
/// # Errors
/// When the kernel has no room.
#[inline(always)]
pub fn replace<A: Tables>(key: &CtKey<A>, row: &CtEntry<A>) -> Result<(), DropReason> {
    if maps::conntrack_claim(key, row) == Claim::Entered {
        return Ok(());
    }
    retire(key);
    maps::conntrack_put(key, row)
}

/// Removes all rows of a connection: of that whose replies, or only row, meet the key in the room. True for the
/// one who does it.
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
    let Some(reply) = maps::conntrack(key) else { return 1 };
    let has_other = set_other(round, reply, key, other_key);
    let is_removed = retire(if has_other { other_key } else { key });
    if has_other {
        return 0;
    }
    if let Some(carried) = maps::carried::<A>() {
        carried.is_removed = is_removed.into();
    }
    1
}

/// Sets `other` to the key of the row that goes in this round, false if only the one that replies meet is
/// left.
#[inline(always)]
fn set_other<A: Tables>(round: u32, reply: &CtEntry<A>, own: &CtKey<A>, other: &mut CtKey<A>) -> bool {
    if Role(reply.role).is_alone() {
        return false;
    }
    if round == 0 {
        other.set_pair(reply, own.proto, own.hook);
        // Unless the client has gone on by another port.
        return own.hook != INGRESS || maps::conntrack(other).is_none_or(|pair| own.is_undone_by(pair));
    }
    if reply.role == Role::REV_SNAT.0 && round < ROWS - 1 {
        if round == 1 {
            other.set_next(reply, own.proto);
        } else {
            other.set_first(reply, own.proto);
        }
        return true;
    }
    if reply.role == Role::REV_DNAT.0 && reply.flags & SNAT != 0 && round == 1 {
        other.set_reversed(own);
        return true;
    }
    false
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

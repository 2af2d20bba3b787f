//! Connections that give way wait in queues (`proxy_common::maps::transient`). Each that opens, or ends, takes
//! the next place, and who waited there is forgotten if it still gives way.

use core::{ffi::c_void, ptr};

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    Tuple, flow,
    maps::{
        conntrack::{CtEntry, CtKey, Role, flags::SNAT_PENDING},
        transient::Queue,
    },
    proto,
};

use super::{conntrack::now, retire::retire_all};
use crate::{
    global::global_by_family,
    maps::{self, Room, Tables, Turn},
};

/// Places that are cleared where the table is full: in most, nobody may be waiting.
const TURNS_WHEN_FULL: u32 = 16;

/// Of a connection that has ended, in place of its protocol.
const HAS_ENDED: u8 = 0;

/// The connection of `proto` whose first row and its key are in the room has opened, and waits from here on.
/// Takes the room for keys.
#[inline(always)]
pub fn wait<A: Tables>(proto: u8) {
    let Some(Room { turn, row, .. }) = maps::room::<A>() else { return };
    turn.since = row.last_seen;
    take_turns::<A>(proto.into(), 1);
}

/// No room was found for a connection of `proto`. The next one is to find some, if anybody gives way.
#[inline(always)]
pub fn make_room<A: Tables>(proto: u8) {
    let Some(turn) = maps::turn::<A>() else { return };
    turn.since = 0;
    take_turns::<A>(HAS_ENDED.into(), TURNS_WHEN_FULL);
    take_turns::<A>(proto.into(), TURNS_WHEN_FULL);
}

global_by_family! {
    fn take_turns(proto: u32, turns: u32) = take as shunt_take_turns4, shunt_take_turns6;
}

/// Takes places in the queue of `proto`, or of those that have ended, until somebody is forgotten. 1 if somebody is.
#[inline(always)]
fn take<A: Tables>(proto: u32, turns: u32) -> u32 {
    let Some(turn) = maps::turn::<A>() else { return 0 };
    turn.proto = proto;
    // SAFETY: the callback takes no context.
    unsafe { helper::bpf_loop(turns, take_turn::<A> as *const () as *mut c_void, ptr::null_mut(), 0) };
    let is_due = maps::turn::<A>().is_some_and(|turn| turn.is_due != 0);
    if !is_due {
        return 0;
    }
    set_last::<A>();
    retire_all::<A>().into()
}

/// Notes what a packet with these flags says about the end of its connection, which waits from here on if that
/// was it. `own` is the packet at `hook`.
#[inline(always)]
pub fn note_end<A: Tables>(own: &Tuple<A>, tcp_flags: u8, hook: u8) {
    let Some(key) = maps::new_key() else { return };
    key.set(own, hook);
    note::<A>(tcp_flags.into());
}

global_by_family! {
    fn note(tcp_flags: u32) = note_in_room as shunt_note_end4, shunt_note_end6;
}

/// The same for the packet whose key is in the room. 1 if that was the end.
#[inline(always)]
fn note_in_room<A: Tables>(tcp_flags: u32) -> u32 {
    let Some(Room { turn, key, found: entry, .. }) = maps::room::<A>() else { return 0 };
    let Some(row) = maps::conntrack_apart(key, entry) else { return 0 };
    row.change(entry, |entry| entry.tcp_flags = flow::noted(entry.tcp_flags, tcp_flags as u8));
    if key.proto != proto::TCP || !is_at_end(entry) || !has_ended(entry) {
        return 0;
    }
    turn.since = now();
    if Role(entry.role).is_reply() {
        let (proto, hook) = (key.proto, key.hook);
        key.set_pair(entry, proto, hook);
    }
    take_turns::<A>(HAS_ENDED.into(), 1);
    1
}

/// Rows at either end of a connection: one of each direction sees all its packets. Those that are left to
/// netfilter end when that says so.
#[inline(always)]
fn is_at_end<A>(entry: &CtEntry<A>) -> bool {
    let role = Role(entry.role);
    role.is_primary() || role.pair().is_primary() || entry.role == Role::PASS.0
}

/// The key of the row is in the room.
#[inline(always)]
fn has_ended<A: Tables>(entry: &CtEntry<A>) -> bool {
    let Some(Room { key, other_key, .. }) = maps::room::<A>() else { return false };
    entry.has_ended(pair(entry, key, other_key))
}

/// One round: 1 ends the loop. What is needed later is kept in the room, for the stack.
extern "C" fn take_turn<A: Tables>(_: u32, _: *mut c_void) -> i64 {
    let Some(Room { turn, key, other_key, .. }) = maps::room::<A>() else { return 1 };
    turn.is_due = 0;
    let Some(place) = maps::take_place::<A>(queue(turn)) else { return 1 };
    turn.waits_since = place.since;
    place.since = turn.since;
    *other_key = place.key;
    place.key = *key;
    *key = *other_key;
    (turn.waits_since != 0 && is_forgotten::<A>()).into()
}

#[inline(always)]
fn queue(turn: &Turn) -> Queue {
    let proto = turn.proto as u8;
    if proto == HAS_ENDED { Queue::Ended } else { Queue::of(proto) }
}

/// True if the connection whose key is in the room still gives way.
#[inline(always)]
fn is_forgotten<A: Tables>() -> bool {
    let Some(Room { turn, key, other_key, .. }) = maps::room::<A>() else { return false };
    let Some(row) = maps::candidate(key) else { return false };
    let pair = pair(row, key, other_key);
    turn.is_alone = pair.is_none().into();
    let is_due = row.is_forgotten(pair, key.proto, queue(turn), turn.waits_since);
    turn.is_due = is_due.into();
    is_due
}

/// The row of the other direction, if there is one. `own` is the key of `row`, `key` room for one.
#[inline(always)]
fn pair<A: Tables>(row: &CtEntry<A>, own: &CtKey<A>, key: &mut CtKey<A>) -> Option<&'static CtEntry<A>> {
    if Role(row.role).is_alone() {
        return None;
    }
    key.set_pair(row, own.proto, own.hook);
    // Another frontend may have led the client's port to the same backend since.
    maps::other_row(key).map(|row| &*row).filter(|pair| own.is_undone_by(pair))
}

/// Makes the key in the room, that of the first row, the one by which [`retire_all`] finds all rows: where the
/// reply comes in.
#[inline(always)]
fn set_last<A: Tables>() {
    let Some(Room { turn, key, other_key: other, .. }) = maps::room::<A>() else { return };
    if turn.is_alone != 0 {
        return;
    }
    let Some(row) = maps::candidate(key) else { return };
    let proto = key.proto;
    if row.has_next() {
        other.set_next(row, proto);
        if let Some(next) = maps::other_row(other).filter(|next| next.flags & SNAT_PENDING == 0) {
            key.set_pair(next, proto, other.hook);
            return;
        }
    }
    key.set_pair(row, proto, key.hook);
}

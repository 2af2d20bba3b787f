//! Rows of a connection that are lost: anybody may delete one.
//! What is lost is made anew of the rows that are left (`proxy_common::flow`), before a packet misses it.
//!
//! The fast programs only look whether a row's others are there, once in a timer tick. What is to be done
//! then is done in a program of its own, after which the packet begins anew.

use proxy_common::{
    Tuple,
    maps::{
        conntrack::{
            CtEntry, CtKey, Role,
            flags::{SNAT, SNAT_PENDING},
        },
        settings::flags::HANDOVER,
    },
};

use super::retire::retire;
use crate::maps::{self, Row, Tables};

/// False if a row is missing that packets of this row's connection meet next, in either direction.
/// `own` are the row's packets at `hook`, `key` is room for keys.
///
/// The rows of a masqueraded connection also learn here what source the backend sees.
#[inline(always)]
pub fn is_whole<A: Tables>(
    row: Row<A>,
    entry: &mut CtEntry<A>,
    own: &Tuple<A>,
    hook: u8,
    key: &mut CtKey<A>,
) -> bool {
    let role = Role(entry.role);
    if role.pair() == Role::NONE || entry.flags & SNAT_PENDING != 0 {
        return true;
    }
    key.set_pair(entry, own.proto, hook);
    let whole = match maps::other_row(key) {
        // The connection that a reply row belongs to may have gone on by another port.
        Some(pair) => role.is_reply() || pair.undoes(own),
        None => false,
    };
    (whole && next_is_there(row, entry, own, key)) || is_moving()
}

#[inline(always)]
fn next_is_there<A: Tables>(row: Row<A>, entry: &mut CtEntry<A>, own: &Tuple<A>, key: &mut CtKey<A>) -> bool {
    if !entry.has_next() {
        return true;
    }
    key.set_next(entry, own.proto);
    let Some(next) = maps::other() else { return false };
    let Some(next_row) = maps::conntrack_apart(key, next) else { return false };
    if entry.role == Role::DNAT.0 {
        if next.flags & SNAT_PENDING == 0 && !is_named(entry, next.src, next.sport) {
            row.name_masquerade(entry, next.src, next.sport);
        }
        return true;
    }
    if !is_named(next, own.dst, own.dport) {
        next_row.name_masquerade(next, own.dst, own.dport);
    }
    // Else the client goes on without a masquerade, in another connection.
    next.flags & SNAT != 0
}

#[inline(always)]
fn is_named<A: Tables>(entry: &CtEntry<A>, masquerade: A, port: u16) -> bool {
    entry.other_port == port && entry.other_addr == masquerade
}

/// While maps are replaced, rows that are missing are in the other ones, whose programs would never see a
/// packet that a row made here has masqueraded by another port.
#[inline(always)]
pub fn is_moving() -> bool {
    maps::settings().is_none_or(|settings| settings.flags & HANDOVER != 0)
}

/// Makes the rows that are missing of this one. If another connection has the tuple meanwhile, this one
/// gets another port, or ends.
#[inline(always)]
pub fn restore<A: Tables>(row: Row<A>, entry: &mut CtEntry<A>, own: &Tuple<A>, hook: u8, key: &mut CtKey<A>) {
    if is_moving() || Role(entry.role).pair() == Role::NONE || entry.flags & SNAT_PENDING != 0 {
        return;
    }
    if entry.role == Role::REV_SNAT.0 {
        return restore_masquerade(entry, own, hook, key);
    }
    key.set_pair(entry, own.proto, hook);
    match maps::other_row(key) {
        Some(pair) if Role(entry.role).is_reply() || pair.undoes(own) => {}
        Some(_) if entry.role == Role::SNAT.0 => {
            row.change(entry, |entry| entry.flags |= SNAT_PENDING);
        }
        Some(_) => {
            key.set(own, hook);
            retire(key);
            return;
        }
        None => put_pair(entry, own, key),
    }
    if entry.has_next() {
        put_next(entry, own, key);
    }
}

/// A reply to the node. Two rows must agree on its connection: it may be over, and its port another's.
#[inline(always)]
fn restore_masquerade<A: Tables>(entry: &CtEntry<A>, own: &Tuple<A>, hook: u8, key: &mut CtKey<A>) {
    key.set_next(entry, own.proto);
    match maps::other_row(key) {
        Some(next) if next.flags & SNAT == 0 => {
            key.set(own, hook);
            retire(key);
        }
        Some(_) => {
            key.set_pair(entry, own.proto, hook);
            if maps::other_row(key).is_none() {
                put_pair(entry, own, key);
            }
        }
        None => {
            key.set_pair(entry, own.proto, hook);
            if maps::other_row(key).is_some_and(|pair| pair.undoes(own)) {
                put_next(entry, own, key);
            }
        }
    }
}

/// `key` is the pair's.
#[inline(always)]
fn put_pair<A: Tables>(entry: &CtEntry<A>, own: &Tuple<A>, key: &CtKey<A>) {
    let Some(row) = maps::new_row::<A>() else { return };
    entry.write_pair(own, row);
    maps::conntrack_claim(key, row);
}

#[inline(always)]
fn put_next<A: Tables>(entry: &CtEntry<A>, own: &Tuple<A>, key: &mut CtKey<A>) {
    let Some(row) = maps::new_row::<A>() else { return };
    key.set_next(entry, own.proto);
    if entry.write_next(own, row) {
        maps::conntrack_claim(key, row);
    }
}

//! Where keys and rows of `conntrack` are put together, and refusals passed on: the stack has no room.

use proxy_common::maps::conntrack::{CtEntry, CtKey};

use super::Tables;
use crate::stage::select::Refusal;

/// The room of a CPU.
#[repr(C)]
pub struct Room<A> {
    row: CtEntry<A>,
    key: CtKey<A>,
    refusal: Refusal,
}

/// Room for a row that is not in the table yet.
#[inline(always)]
pub fn new_row<A: Tables>() -> Option<&'static mut CtEntry<A>> {
    // SAFETY: the slot belongs to this CPU, and no other program of ours interrupts the one that uses it:
    // those of devices run with softirqs off. Its parts are given out by one function each, and nobody
    // holds one while asking for it again.
    A::rooms().get_ptr_mut(0).map(|room| unsafe { &mut (*room).row })
}

/// Room for the keys of rows that are looked for.
#[inline(always)]
pub fn new_key<A: Tables>() -> Option<&'static mut CtKey<A>> {
    // SAFETY: see `new_row`.
    A::rooms().get_ptr_mut(0).map(|room| unsafe { &mut (*room).key })
}

/// Keeps a refusal for the program that says it.
#[inline(always)]
pub fn put_refusal<A: Tables>(refusal: Refusal) {
    if let Some(room) = A::rooms().get_ptr_mut(0) {
        // SAFETY: see `new_row`.
        unsafe { (*room).refusal = refusal };
    }
}

/// What was kept.
#[inline(always)]
pub fn refusal<A: Tables>() -> Option<&'static Refusal> {
    // SAFETY: see `new_row`. Programs alone write it, and zeroes are a refusal.
    A::rooms().get(0).map(|room| &room.refusal)
}

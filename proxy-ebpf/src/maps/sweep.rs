//! Where a sweep puts a connection together: on the stack there is no room. And the verifier follows what lies on the
//! stack, so that it walks the rest of the program once for each way to get there; of values of maps it knows nothing.

use core::cell::{Cell, UnsafeCell};

use proxy_common::{
    flow::Connection,
    maps::{
        conntrack::{CtEntry, CtKey},
        sweep::{Sweep, SweptConnection},
    },
};

use super::{SWEEP, Tables, atomic::exchange, conntrack, conntrack_remove, flows::copy_words};

/// The room of a CPU.
#[repr(C)]
pub struct SweepRoom<A> {
    /// 1 while a program uses it.
    taken: u64,
    /// The row that is looked at, and its key, as they were copied.
    pub row: CtEntry<A>,
    pub key: CtKey<A>,
    pub others: Others<A>,
    pub connection: Connection<A>,
    pub swept: SweptConnection<A>,
    /// Of a row that belongs to the one that is looked at.
    pub other: CtKey<A>,
}

/// Copies of rows that belong to the one that is looked at. Each is good until the next but one is made: nobody needs
/// three at a time.
#[repr(C)]
pub struct Others<A> {
    copies: UnsafeCell<[CtEntry<A>; 2]>,
    copied: Cell<u32>,
}

impl<A: Tables> Others<A> {
    /// A copy of the row of `key`, if there is one.
    #[inline(always)]
    pub fn copy<'r>(&self, key: &CtKey<A>) -> Option<&'r CtEntry<A>> {
        let turn = self.copied.get().wrapping_add(1);
        self.copied.set(turn);
        // SAFETY: of the map, and of this CPU alone. Who calls keeps to what the type says.
        let entry = unsafe { &mut *self.copies.get().cast::<CtEntry<A>>().add(turn as usize & 1) };
        if conntrack(key, entry).is_some() { Some(entry) } else { None }
    }
}

/// Copies an element of `conntrack` into the room; false if it has just gone. One that no program takes for a row goes.
///
/// # Safety
/// `key` and `row` are those of an element, whose place stays one of the map until the program ends.
#[inline(always)]
pub unsafe fn copy_swept<A: Tables>(
    key: *const CtKey<A>,
    row: *const CtEntry<A>,
    room: &mut SweepRoom<A>,
) -> bool {
    // SAFETY: the caller's; any bits are valid.
    unsafe {
        copy_words::<u32, _>(key, &mut room.key);
        copy_words::<u64, _>(row, &mut room.row);
    }
    if room.row.is_at(&room.key) || conntrack(&room.key, &mut room.row).is_some() {
        return true;
    }
    conntrack_remove(&room.key);
    false
}

/// How to sweep.
#[inline(always)]
pub fn sweep() -> Option<&'static mut Sweep> {
    // SAFETY: the agent writes it before it has the programs run. Whoever else reads their pins has them run too: then
    // `rows`, which is all that programs write, is wrong.
    SWEEP.get_ptr_mut(0).map(|p| unsafe { &mut *p })
}

/// Calls `inside` with the room of this CPU; nothing if another reader of the iterator has it, whom this one
/// interrupted.
#[inline(always)]
pub fn in_sweep_room<A: Tables, T>(inside: impl FnOnce(&mut SweepRoom<A>) -> T) -> Option<T> {
    let room = A::sweep_rooms().get_ptr_mut(0)?;
    // SAFETY: `taken` is an aligned u64 of the map, and programs alone write there. Whoever finds 0 has the room until
    // it writes that again: the kernel moves no program to another CPU. Zeroes are valid everywhere.
    unsafe {
        let taken = &raw mut (*room).taken;
        if exchange(taken, 1) != 0 {
            return None;
        }
        let result = inside(&mut *room);
        exchange(taken, 0);
        Some(result)
    }
}

//! Packets in fragments, and those that are held.

use aya_ebpf::bindings::BPF_NOEXIST;
use proxy_common::maps::fragments::{
    FragmentKey, FragmentRow, HELD_CAPACITY, HeldFragment, HeldKey, HeldTurn,
};

use super::{
    HELD_FRAGMENTS, HELD_SCRATCH, HELD_TURNS, Tables, atomic::fetch_add, flows::copy_words, read_row, room,
};
use crate::global::global_by_family;

/// A copy of a row. It is good until the next is copied.
#[inline(always)]
pub fn fragment<A: Tables>(key: &FragmentKey<A>) -> Option<&'static FragmentRow<A>> {
    *room::fragment_key()? = *key;
    if copy_fragment::<A>() == 0 { None } else { room::fragment_room().map(|copy| &*copy) }
}

global_by_family! {
    fn copy_fragment() = copy_in_room as shunt_copy_fragment4, shunt_copy_fragment6;
}

/// 1 if there is a row of the key in the room, of which the room has a copy then, else 0.
#[inline(always)]
fn copy_in_room<A: Tables>() -> u32 {
    let (Some(key), Some(copy)) = (room::fragment_key::<A>(), room::fragment_room()) else { return 0 };
    // SAFETY: rows stay in the map's memory until the program ends, any bytes are one, and it consists of such words.
    read_row(|| A::fragments().get_ptr(&*key), |row| unsafe { copy_words::<u64, _>(row, copy) })
        .is_some()
        .into()
}

#[inline(always)]
pub fn has_fragment<A: Tables>(key: &FragmentKey<A>) -> bool {
    A::fragments().get_ptr(key).is_some()
}

#[inline(always)]
pub fn put_fragment<A: Tables>(key: &FragmentKey<A>, row: &FragmentRow<A>) {
    // Without the row the other fragments are left to the stack.
    let _ = A::fragments().insert(key, row, 0);
}

/// Inserts a row only if there is none.
#[inline(always)]
pub fn claim_fragment<A: Tables>(key: &FragmentKey<A>, row: &FragmentRow<A>) -> bool {
    A::fragments().insert(key, row, u64::from(BPF_NOEXIST)).is_ok()
}

#[inline(always)]
pub fn held(place: &HeldKey) -> Option<&'static HeldFragment> {
    // SAFETY: the row stays in place until the program ends; if it is recycled meanwhile, deleting it fails.
    unsafe { HELD_FRAGMENTS.get_ptr(place).map(|p| &*p) }
}

/// Inserts a held fragment only if its place is free.
#[inline(always)]
pub fn claim_held(place: &HeldKey, fragment: &HeldFragment) -> bool {
    HELD_FRAGMENTS.insert(place, fragment, u64::from(BPF_NOEXIST)).is_ok()
}

/// True for the one who deletes it.
#[inline(always)]
pub fn delete_held(place: &HeldKey) -> bool {
    HELD_FRAGMENTS.remove(place).is_ok()
}

/// Takes the next place in the ring. Whoever was held there is held no more.
#[inline(always)]
pub fn take_held_turn() -> Option<*mut HeldTurn> {
    let first = HELD_TURNS.get_ptr_mut(0)?;
    // SAFETY: an aligned word of the map.
    let taken = unsafe { fetch_add(&raw mut (*first).taken, 1) };
    let turn = HELD_TURNS.get_ptr_mut((taken % u64::from(HELD_CAPACITY)) as u32)?;
    // SAFETY: the map keeps it; another CPU writes it only when all other places have been taken meanwhile, and whatever
    // key is read then, it is one fragment that goes, or none.
    let _ = HELD_FRAGMENTS.remove(unsafe { &(*turn).key });
    Some(turn)
}

#[inline(always)]
pub fn held_scratch() -> Option<&'static mut HeldFragment> {
    // SAFETY: the slot belongs to this CPU, and no other program of ours interrupts the one that uses it.
    HELD_SCRATCH.get_ptr_mut(0).map(|p| unsafe { &mut *p })
}

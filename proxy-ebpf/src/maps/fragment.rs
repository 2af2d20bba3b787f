//! Packets in fragments, and those that are held.

use aya_ebpf::bindings::BPF_NOEXIST;
use proxy_common::maps::fragments::{FragmentKey, FragmentRow, HELD_LEN, HeldFragment, HeldKey};

use super::{HELD_FRAGMENTS, HELD_SCRATCH, Tables, flows::copy_words, read_row, room};

/// A copy of a row. It is good until the next is copied.
#[inline(always)]
pub fn fragment<A: Tables>(key: &FragmentKey<A>) -> Option<&'static FragmentRow<A>> {
    let copy = room::fragment_room()?;
    // SAFETY: rows stay in the map's memory until the program ends, any bytes are one, and it consists of such words.
    read_row(|| A::fragments().get_ptr(key), |row| unsafe { copy_words::<u64, _>(row, copy) })?;
    Some(copy)
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
pub fn is_held(place: &HeldKey) -> bool {
    HELD_FRAGMENTS.get_ptr(place).is_some()
}

/// A held fragment: when it came, the interface, how long it is, and its bytes, which another may have meanwhile. Whoever
/// deletes it knows that it was this one.
#[inline(always)]
pub fn held(place: &HeldKey) -> Option<(u64, u32, u32, &'static [u8; HELD_LEN])> {
    let row = HELD_FRAGMENTS.get_ptr(place)?;
    // SAFETY: fields of a row, which stays in the map's memory until the program ends. Nobody but the kernel reads the
    // bytes, for which it takes care that it reads no more.
    unsafe {
        Some((
            (&raw const (*row).since).read_volatile(),
            (&raw const (*row).ifindex).read_volatile(),
            (&raw const (*row).len).read_volatile(),
            &(*row).bytes,
        ))
    }
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

#[inline(always)]
pub fn held_scratch() -> Option<&'static mut HeldFragment> {
    // SAFETY: the slot belongs to this CPU, and no other program of ours interrupts the one that uses it.
    HELD_SCRATCH.get_ptr_mut(0).map(|p| unsafe { &mut *p })
}

//! Packets in fragments, and those that are held.

use aya_ebpf::bindings::BPF_NOEXIST;
use proxy_common::maps::fragments::{FragmentKey, FragmentRow, HeldFragment, HeldKey};

use super::{HELD_FRAGMENTS, HELD_SCRATCH, Tables};

#[inline(always)]
pub fn fragment<A: Tables>(key: &FragmentKey<A>) -> Option<&'static FragmentRow<A>> {
    // SAFETY: as for conntrack rows; fragment rows are replaced as a whole.
    unsafe { A::fragments().get_ptr(key).map(|p| &*p) }
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

#[inline(always)]
pub fn held_scratch() -> Option<&'static mut HeldFragment> {
    // SAFETY: the slot belongs to this CPU, and no other program of ours interrupts the one that uses it.
    HELD_SCRATCH.get_ptr_mut(0).map(|p| unsafe { &mut *p })
}

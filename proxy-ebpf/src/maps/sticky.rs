//! Session affinity, and whom it goes by.

use aya_ebpf::bindings::BPF_NOEXIST;
use proxy_common::maps::affinity::{Affinity, AffinityKey};

use super::Tables;

#[inline(always)]
pub fn affinity<A: Tables>(key: &AffinityKey<A>) -> Option<*mut Affinity> {
    A::affinity().get_ptr_mut(key)
}

/// Inserts a row only if there is none.
#[inline(always)]
pub fn claim_affinity<A: Tables>(key: &AffinityKey<A>, row: &Affinity) -> bool {
    A::affinity().insert(key, row, u64::from(BPF_NOEXIST)).is_ok()
}

/// The address of a network namespace's sockets, if one was bound.
#[inline(always)]
pub fn netns_address<A: Tables>(netns: u64) -> Option<&'static A> {
    // SAFETY: rows stay in place until the program ends, and are never changed.
    unsafe { A::netns_addresses().get_ptr(netns).map(|p| &*p) }
}

/// Enters the address; false if there is another.
#[inline(always)]
pub fn claim_netns_address<A: Tables>(netns: u64, addr: &A) -> bool {
    A::netns_addresses().insert(netns, addr, u64::from(BPF_NOEXIST)).is_ok()
        || netns_address::<A>(netns).is_some_and(|known| known == addr)
}

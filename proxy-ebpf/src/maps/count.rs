//! What is counted.

use core::arch::asm;

use aya_ebpf::bindings::BPF_NOEXIST;
use proxy_common::{
    DropReason,
    maps::{
        counters::{CounterKey, Traffic},
        service_drops::ServiceDropKey,
    },
};

use super::{DROPS, SERVICE_DROPS, Tables};

/// Counts a connection that was opened.
#[inline(always)]
pub fn count_opened<A: Tables>(key: &CounterKey) {
    let own = || A::opened().get_ptr_mut(key);
    count(own, || A::opened().insert(key, &1, u64::from(BPF_NOEXIST)).is_ok());
}

/// Adds one to this CPU's own count, which `own` finds, or begins a row by `begin`. As one operation: programs of a CPU
/// may interrupt each other.
#[inline(always)]
fn count(own: impl Fn() -> Option<*mut u64>, begin: impl FnOnce() -> bool) {
    if let Some(count) = own() {
        return add(count, 1);
    }
    if !begin() {
        // Another CPU was faster to insert it, or there is no room.
        if let Some(count) = own() {
            add(count, 1);
        }
    }
}

/// Counts a refusal, also by service; 0 is none.
#[inline(always)]
pub fn count_refusal(service: u32, reason: DropReason) {
    count_drop(reason);
    let key = ServiceDropKey { service, reason: reason as u32 };
    let own = || SERVICE_DROPS.get_ptr_mut(&key);
    count(own, || SERVICE_DROPS.insert(&key, &1, u64::from(BPF_NOEXIST)).is_ok());
}

/// Adds what a connection has carried that is over.
#[inline(always)]
pub fn add_traffic<A: Tables>(key: &CounterKey, more: &Traffic) {
    // Another CPU may be faster to insert it.
    for _ in 0..2 {
        if let Some(sum) = A::traffic().get_ptr_mut(key) {
            // SAFETY: fields of a map row, which stays in place until the program ends.
            unsafe {
                add(&raw mut (*sum).in_packets, more.in_packets);
                add(&raw mut (*sum).in_bytes, more.in_bytes);
                add(&raw mut (*sum).out_packets, more.out_packets);
                add(&raw mut (*sum).out_bytes, more.out_bytes);
            }
            return;
        }
        if A::traffic().insert(key, more, u64::from(BPF_NOEXIST)).is_ok() {
            return;
        }
    }
}

#[inline(always)]
pub fn count_drop(reason: DropReason) {
    if let Some(count) = DROPS.get_ptr_mut(reason as u32) {
        // SAFETY: the slot belongs to this CPU, and programs on one CPU do not interrupt each other
        // between the read and the write often enough to matter for a counter.
        unsafe { *count += 1 };
    }
}

#[inline(always)]
fn add(count: *mut u64, more: u64) {
    // SAFETY: an aligned u64 of a map row, which stays in place until the program ends; the standard
    // library has no atomic operations for this target.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) count, in(reg) more, options(nostack)) };
}

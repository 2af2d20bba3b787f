//! Programs that the kernel runs for every element of a map, when the agent reads what they write: see
//! Documentation/bpf/bpf_iterators.rst in the kernel.

use core::{ffi::c_void, ptr};

use aya_ebpf::{bindings::seq_file, helpers::generated as helper};

/// `struct bpf_iter__bpf_map_elem` (kernel/bpf/map_iter.c) and `struct bpf_iter__bpf_sk_storage_map`
/// (net/core/bpf_sk_storage.c).
#[repr(C)]
pub struct Element<K, V> {
    meta: *const Meta,
    map: *const c_void,
    /// Null behind the last one, as is the value.
    pub key: *const K,
    pub value: *mut V,
}

/// The start of `struct bpf_iter_meta`.
#[repr(C)]
struct Meta {
    seq: *mut seq_file,
}

impl<K, V> Element<K, V> {
    /// Where to write.
    ///
    /// # Safety
    /// The kernel runs the program with this.
    #[inline(always)]
    pub unsafe fn seq(&self) -> *mut seq_file {
        // SAFETY: the caller's.
        unsafe { (*self.meta).seq }
    }
}

/// What a program returns to be run for the element again (kernel/bpf/bpf_iter.c).
pub const AGAIN: i32 = 1;

/// Writes `shown`; false if there is no room for it. Then the kernel runs the program for the element again.
///
/// # Safety
/// `seq` is that of the element for which the program runs. `shown` has no padding.
#[inline(always)]
pub unsafe fn write<T>(seq: *mut seq_file, shown: &T) -> bool {
    let bytes = ptr::from_ref(shown).cast_mut().cast();
    // SAFETY: the caller's.
    unsafe { helper::bpf_seq_write(seq, bytes, size_of::<T>() as u32) == 0 }
}

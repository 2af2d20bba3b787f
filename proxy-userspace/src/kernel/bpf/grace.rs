//! Waits for programs that run.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
};

use aya_obj::generated::{bpf_cmd, bpf_map_type};

use super::{bpf, link::owned, zeroed_attr};

/// Returns when every program that ran before has ended. That takes the kernel some milliseconds.
///
/// A map of maps is written: for all that programs may still hold of what was in it, the kernel lets them end before
/// it returns (`maybe_wait_bpf_programs` in kernel/bpf/syscall.c). `membarrier` would do the same, but not on kernels
/// with processors that take no ticks.
///
/// # Errors
/// When the kernel makes no such maps.
pub(in crate::kernel) fn wait_for_programs() -> io::Result<()> {
    let inner = create(bpf_map_type::BPF_MAP_TYPE_ARRAY, None)?;
    let outer = create(bpf_map_type::BPF_MAP_TYPE_ARRAY_OF_MAPS, Some(inner.as_fd()))?;
    let (key, value) = (0u32, inner.as_raw_fd());
    let mut attr = zeroed_attr();
    // SAFETY: this member of the union is the one the command reads.
    let element = unsafe { &mut attr.__bindgen_anon_2 };
    element.map_fd = outer.as_raw_fd() as u32;
    element.key = (&raw const key) as u64;
    element.__bindgen_anon_1.value = (&raw const value) as u64;
    bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr).map(drop)
}

/// A map with one row of four bytes; of a map of maps, `inner` is of the kind that goes into it.
fn create(kind: bpf_map_type, inner: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let mut attr = zeroed_attr();
    // SAFETY: this member of the union is the one the command reads.
    let map = unsafe { &mut attr.__bindgen_anon_1 };
    map.map_type = kind as u32;
    map.key_size = size_of::<u32>() as u32;
    map.value_size = size_of::<u32>() as u32;
    map.max_entries = 1;
    map.inner_map_fd = inner.map_or(0, |inner| inner.as_raw_fd() as u32);
    owned(bpf(bpf_cmd::BPF_MAP_CREATE, &mut attr)?)
}

//! Arrays shared with the kernel by memory: a row costs a store, not a system call.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd},
    sync::atomic::{AtomicU64, Ordering},
};

use aya::{Pod, maps::MapData};
use memmap2::{MmapOptions, MmapRaw};

/// An array map of `T`, mapped into memory.
pub(super) struct MappedArray<T> {
    memory: MmapRaw,
    len: u32,
    row: PhantomData<T>,
}

impl<T: Pod> MappedArray<T> {
    /// The kernel pads each element to eight bytes (`array_map_alloc`).
    const STRIDE: usize = size_of::<T>().next_multiple_of(8);

    /// Maps the array; `map` must have been made with `BPF_F_MMAPABLE` and elements of `T`'s size.
    pub(super) fn new(map: &MapData) -> io::Result<Self> {
        let info = map.info().map_err(io::Error::other)?;
        if info.value_size() as usize != size_of::<T>() {
            return Err(io::Error::other(format!("elements have {} bytes", info.value_size())));
        }
        let len = info.max_entries();
        let memory =
            MmapOptions::new().len(len as usize * Self::STRIDE).map_raw(map.fd().as_fd().as_raw_fd())?;
        Ok(Self { memory, len, row: PhantomData })
    }

    /// Number of elements.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    fn at(&self, index: u32) -> io::Result<*mut T> {
        if index >= self.len {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no element {index}")));
        }
        // SAFETY: below `len`, so inside the mapping, which covers `len` strides.
        Ok(unsafe { self.memory.as_mut_ptr().add(index as usize * Self::STRIDE) }.cast())
    }

    /// Reads an element.
    pub(super) fn get(&self, index: u32) -> io::Result<T> {
        let at = self.at(index)?;
        // SAFETY: inside the mapping and aligned (the stride is a multiple of 8, T's alignment at most
        // that); T is plain old data, so bytes the kernel changes meanwhile are still a T.
        Ok(unsafe { at.read_volatile() })
    }

    /// Writes an element. Readers in the kernel may see it half written: only elements that no frontend
    /// leads to are written, which the order of the reconciler guarantees.
    pub(super) fn set(&mut self, index: u32, value: T) -> io::Result<()> {
        let at = self.at(index)?;
        // SAFETY: as in `get`.
        unsafe { at.write_volatile(value) };
        Ok(())
    }
}

impl MappedArray<u64> {
    /// Sets bits of an element, which the kernel's programs may do at the same time.
    pub(super) fn set_bits(&mut self, index: u32, bits: u64) -> io::Result<()> {
        let at = self.at(index)?;
        // SAFETY: inside the mapping and aligned, and all who write such an array do it atomically.
        unsafe { AtomicU64::from_ptr(at) }.fetch_or(bits, Ordering::Relaxed);
        Ok(())
    }
}

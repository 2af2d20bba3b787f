//! Arrays shared with the kernel by memory: a row costs a store, not a system call.

use std::{
    cell::RefCell,
    io,
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU64, Ordering},
};

use aya::{Pod, maps::MapData};
use memmap2::{MmapOptions, MmapRaw};

/// Bytes that are mapped at a time of an array that is larger than [`WHOLE`]. The kernel enters
/// every page of a mapping right away (`remap_vmalloc_range`), and each counts as memory of this
/// process. No page is larger than this.
const WINDOW: usize = 64 << 10;

/// Arrays of up to so many bytes are mapped as a whole.
const WHOLE: usize = 1 << 20;

/// An array map of `T`, of which a part is mapped into memory.
pub(super) struct MappedArray<T> {
    map: OwnedFd,
    window: RefCell<Window>,
    len: u32,
    row: PhantomData<T>,
}

/// A mapped part of an array.
struct Window {
    memory: MmapRaw,
    /// Where it begins in the array, in bytes.
    start: usize,
}

impl Window {
    fn new(map: BorrowedFd<'_>, start: usize, len: usize) -> io::Result<Self> {
        let memory = MmapOptions::new().offset(start as u64).len(len).map_raw(map.as_raw_fd())?;
        Ok(Self { memory, start })
    }

    fn covers(&self, from: usize, len: usize) -> bool {
        from >= self.start && from + len <= self.start + self.memory.len()
    }
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
        let map = map.fd().as_fd().try_clone_to_owned()?;
        let size = len as usize * Self::STRIDE;
        let window = Window::new(map.as_fd(), 0, if size > WHOLE { WINDOW } else { size })?;
        Ok(Self { map, window: RefCell::new(window), len, row: PhantomData })
    }

    /// Number of elements.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Calls `access` with the place of an element, which is valid until it returns.
    fn at<R>(&self, index: u32, access: impl FnOnce(*mut T) -> R) -> io::Result<R> {
        if index >= self.len {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no element {index}")));
        }
        let place = index as usize * Self::STRIDE;
        let mut window = self.window.borrow_mut();
        if !window.covers(place, Self::STRIDE) {
            // An element may lie across the end of a window: then the next one is as long as two.
            let start = place / WINDOW * WINDOW;
            let end = (place + Self::STRIDE).next_multiple_of(WINDOW).min(self.len as usize * Self::STRIDE);
            *window = Window::new(self.map.as_fd(), start, end - start)?;
        }
        // SAFETY: the window covers the element.
        let at = unsafe { window.memory.as_mut_ptr().add(place - window.start) };
        Ok(access(at.cast()))
    }

    /// Reads an element.
    pub(super) fn get(&self, index: u32) -> io::Result<T> {
        // SAFETY: inside the mapping and aligned (the stride is a multiple of 8, T's alignment at most
        // that); T is plain old data, so bytes the kernel changes meanwhile are still a T.
        self.at(index, |at| unsafe { at.read_volatile() })
    }

    /// Writes an element. Readers in the kernel may see it half written: only elements that no frontend
    /// leads to are written, which the order of the reconciler guarantees.
    pub(super) fn set(&mut self, index: u32, value: T) -> io::Result<()> {
        // SAFETY: as in `get`.
        self.at(index, |at| unsafe { at.write_volatile(value) })
    }
}

impl MappedArray<u64> {
    /// Sets bits of an element, which the kernel's programs may do at the same time.
    pub(super) fn set_bits(&mut self, index: u32, bits: u64) -> io::Result<()> {
        self.at(index, |at| {
            // SAFETY: inside the mapping and aligned, and all who write such an array do it atomically.
            unsafe { AtomicU64::from_ptr(at) }.fetch_or(bits, Ordering::Relaxed);
        })
    }

    /// Adds to an element, as others may at the same time.
    pub(super) fn add(&mut self, index: u32, more: u64) -> io::Result<()> {
        self.at(index, |at| {
            // SAFETY: as in `set_bits`.
            unsafe { AtomicU64::from_ptr(at) }.fetch_add(more, Ordering::Relaxed);
        })
    }
}

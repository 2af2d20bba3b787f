//! A frame that sees where the headers of an IPv6 packet are looked for.

use core::cell::Cell;

use proxy_common::packet::{
    Bytes,
    headers::{Extension, Fragment6, Header, Ipv6},
};

use super::Frame;
use crate::symbolic::assume;

/// Asserts that each header is looked for where the one before it ends, by its own account.
pub(super) struct Chain<const L2: usize> {
    frame: Frame<L2>,
    /// Where the last header ends, 0 before the first.
    end: Cell<usize>,
    /// How many more headers the proof is about.
    left: Cell<u32>,
}

impl<const L2: usize> Chain<L2> {
    #[inline(always)]
    pub(super) fn any(extensions: u32) -> Self {
        // The first header is the packet's.
        Self { frame: Frame::any(), end: Cell::new(0), left: Cell::new(extensions + 1) }
    }

    /// Where the last header ends that was read.
    #[inline(always)]
    pub(super) fn end(&self) -> usize {
        self.end.get()
    }
}

impl<const L2: usize> Bytes for Chain<L2> {
    const L2_LEN: usize = L2;

    #[inline(always)]
    fn len(&self) -> u32 {
        self.frame.len()
    }

    #[inline(always)]
    fn is_gso(&self) -> bool {
        self.frame.is_gso()
    }

    #[inline(always)]
    fn read<T: Header>(&self, offset: usize) -> Option<T> {
        assume(self.left.get() > 0);
        self.left.set(self.left.get() - 1);
        let header: T = self.frame.read(offset)?;
        // Headers of the three kinds have different sizes.
        let len = match size_of::<T>() {
            n if n == size_of::<Ipv6>() => n,
            n if n == size_of::<Fragment6>() => n,
            n if n == size_of::<Extension>() => {
                // SAFETY: only `Extension` is read that has this size, and any bytes are one.
                let extension: Extension = unsafe { core::mem::transmute_copy(&header) };
                8 + 8 * usize::from(extension.len)
            }
            _ => panic!("a header that is none of these"),
        };
        assert!(self.end.get() == 0 || self.end.get() == offset);
        self.end.set(offset + len);
        Some(header)
    }
}

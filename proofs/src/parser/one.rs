//! A frame whose transport header is known to the proof.

use core::mem::transmute_copy;

use proxy_common::{
    Addr,
    packet::{Bytes, Transport, headers::Header},
};

use super::{Frame, any_transport};
use crate::symbolic::Plain;

/// A frame of any length in which one header is known, and all that is read of it.
pub(super) struct One<H> {
    frame: Frame<14>,
    header: H,
}

/// Such a frame, and any transport header that can be found in it.
#[inline(always)]
pub(super) fn frame<A: Addr + Plain, H: Header>(header: H) -> (One<H>, Transport<A>) {
    let frame = Frame::any();
    (One { frame, header }, any_transport(&frame))
}

impl<H> One<H> {
    /// True if there are so many bytes at `offset`.
    #[inline(always)]
    pub(super) fn has(&self, offset: usize, len: usize) -> bool {
        offset + len <= self.frame.len() as usize
    }
}

impl<H: Header> Bytes for One<H> {
    const L2_LEN: usize = 14;

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
        assert!(size_of::<T>() == size_of::<H>());
        // SAFETY: both are headers of the same size, and any bytes are one.
        self.frame.read::<T>(offset).map(|_| unsafe { transmute_copy(&self.header) })
    }
}

//! Bytes → tuple: the headers of a packet, read as if an attacker wrote them.
//!
//! What is not understood wholly yields nothing, and the packet goes on as it came.

pub mod headers;
mod parse;
mod quote;
mod transport;

pub use parse::{Parsed, parse, parse_into};
pub use quote::{Quote, quote};
pub use transport::{IpHeader, Transport, Wire};

/// No header that is read starts farther into the packet.
pub const MAX_OFFSET: usize = 511;

/// No transport header that is read starts farther into the packet: the last of its fields that is
/// written, TCP's checksum, is within [`MAX_OFFSET`].
pub const MAX_TRANSPORT: usize = MAX_OFFSET - 16;

/// A packet that can be read. Offsets count from its first byte, link-layer header included.
#[allow(clippy::len_without_is_empty, reason = "no packet is empty")]
pub trait Bytes {
    /// Length of the link-layer header.
    const L2_LEN: usize;

    /// Bytes in the packet, all segments of an offloaded one included.
    fn len(&self) -> u32;
    /// True for a packet the kernel has still to cut into segments; lengths in its
    /// headers may then not be those of the packet.
    fn is_gso(&self) -> bool;
    /// Copies out a header of type `T`; nothing if the packet ends before, or `offset` is
    /// beyond [`MAX_OFFSET`].
    fn read<T: headers::Header>(&self, offset: usize) -> Option<T>;
}

/// `offset` with its bits above [`MAX_OFFSET`] cleared.
#[inline(always)]
pub fn bounded(offset: usize) -> usize {
    masked::<MAX_OFFSET>(offset)
}

/// `value & MASK`, in a way the verifier sees.
///
/// The compiler would drop a plain mask where it knows the range itself, by ways the verifier
/// does not follow. Also, the verifier of kernels up to 6.1 goes on along branches that cannot
/// be taken, finds the lower bound above the upper one there, and then refuses the sum of
/// packet pointer and offset (`adjust_ptr_min_max_vals` in kernel/bpf/verifier.c).
#[inline(always)]
pub fn masked<const MASK: usize>(value: usize) -> usize {
    #[cfg(target_arch = "bpf")]
    {
        let mut value = value;
        // SAFETY: one instruction on one register.
        unsafe {
            core::arch::asm!("{0} &= {1}", inout(reg) value, const MASK, options(pure, nomem, nostack))
        };
        value
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        value & MASK
    }
}

/// Bytes in memory, read like a packet whose link-layer header is `L2_LEN` long.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a, const L2_LEN: usize>(pub &'a [u8]);

impl<const L2_LEN: usize> Bytes for Slice<'_, L2_LEN> {
    const L2_LEN: usize = L2_LEN;

    fn len(&self) -> u32 {
        self.0.len() as u32
    }

    fn is_gso(&self) -> bool {
        false
    }

    fn read<T: headers::Header>(&self, offset: usize) -> Option<T> {
        if offset > MAX_OFFSET {
            return None;
        }
        let bytes = self.0.get(offset..offset.checked_add(size_of::<T>())?)?;
        // SAFETY: the slice has the size of T, and any bytes are a T.
        Some(unsafe { core::ptr::read_unaligned(bytes.as_ptr().cast()) })
    }
}

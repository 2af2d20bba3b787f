//! What the stages need of a packet, whichever hook it came in by.

pub mod headers;
mod skb;

pub use skb::{Ethernet, Layer3, Skb};

use core::{arch::asm, ffi::c_void};

use proxy_common::DropReason;

/// No header that is read starts farther into the packet.
pub const MAX_OFFSET: usize = 511;

/// `offset` with its bits above [`MAX_OFFSET`] cleared, in a way the verifier sees.
///
/// The compiler would drop a plain mask where it knows the range itself. The verifier of
/// kernels up to 6.1 goes on along branches that cannot be taken, finds the lower bound
/// above the upper one there, and then refuses the sum of packet pointer and offset
/// (`adjust_ptr_min_max_vals` in kernel/bpf/verifier.c).
#[inline(always)]
pub fn bounded(offset: usize) -> usize {
    let mut offset = offset;
    // SAFETY: one instruction on one register.
    unsafe { asm!("{0} &= 0x1ff", inout(reg) offset, options(pure, nomem, nostack)) };
    offset
}

/// A packet under a hook. Offsets count from its first byte, link-layer header included.
pub trait Packet {
    /// Length of the link-layer header.
    const L2_LEN: usize;

    /// The program's context, for helpers that ask for it.
    fn context(&self) -> *mut c_void;
    /// Bytes in the packet, all segments of an offloaded one included.
    fn len(&self) -> u32;
    /// True for a packet the kernel has still to cut into segments; lengths in its
    /// headers may then not be those of the packet.
    fn is_gso(&self) -> bool;
    /// Interface whose hook this is.
    fn ifindex(&self) -> u32;
    /// Interface it came in on, 0 if this host made it.
    fn ingress_ifindex(&self) -> u32;
    /// Copies out a header of type `T`; nothing if the packet ends before.
    fn read<T: headers::Header>(&self, offset: usize) -> Option<T>;
    /// Overwrites bytes that no Internet checksum of the kernel's bookkeeping covers, or
    /// whose change another call accounts for.
    fn write<T: headers::Header>(&self, offset: usize, header: &T) -> Result<(), DropReason>;
    /// Adds `diff` to an IPv4 header checksum.
    fn update_l3_checksum(&self, offset: usize, diff: u32) -> Result<(), DropReason>;
    /// Adds `diff` to a TCP or UDP checksum.
    fn update_l4_checksum(&self, offset: usize, diff: u32, change: L4Change) -> Result<(), DropReason>;
    /// Cuts the packet to `len` bytes.
    fn truncate(&self, len: u32) -> Result<(), DropReason>;
    /// Opens `len` bytes between the link-layer header and what follows.
    fn open_room(&self, len: u32) -> Result<(), DropReason>;
}

/// What a change of a transport checksum stems from.
#[derive(Clone, Copy)]
pub struct L4Change {
    /// Addresses changed, which the checksum covers through the pseudo header.
    pub pseudo_header: bool,
    /// UDP: zero means no checksum (RFC 768).
    pub zero_is_none: bool,
    /// The addresses are IPv6: there is no header checksum to balance them.
    pub ipv6: bool,
}

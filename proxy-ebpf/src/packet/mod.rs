//! What the stages need of a packet, whichever hook it came in by.

mod inner;
mod skb;
mod xdp;

pub use inner::Inner;
pub use skb::{Ethernet, Layer3, Skb};
pub use xdp::{Frame, Framing, Tagged, Untagged};

use core::ffi::c_void;

use proxy_common::{
    DropReason,
    maps::events::Hook,
    packet::{Bytes, headers},
};

/// Reads a 32-bit field of a program's context.
///
/// One instruction, for the verifier wants the offset in it: the compiler may add the offset to
/// the pointer beforehand, where several fields are read ("dereference of modified ctx ptr").
macro_rules! context_field {
    ($context:expr, $type:ty, $field:ident) => {{
        let context: *mut $type = $context;
        let value: u64;
        // SAFETY: the context is valid while the program runs, and the field is four bytes long.
        unsafe {
            core::arch::asm!(
                "{value} = *(u32 *)({context} + {offset})",
                value = out(reg) value,
                context = in(reg) context,
                offset = const core::mem::offset_of!($type, $field),
                options(pure, readonly, nostack)
            )
        };
        value as u32
    }};
}
pub(crate) use context_field;

/// A packet under a hook.
pub trait Packet: Bytes {
    /// The hook at which packets enter the host's stack.
    const ENTRY: Hook;

    /// The program's context, for helpers that ask for it.
    fn context(&self) -> *mut c_void;
    /// Payload of each segment of an offloaded packet, 0 of any other.
    fn segment_size(&self) -> u32;
    /// Packets it is or will be on the wire.
    fn wire_packets(&self) -> u32;
    /// Interface whose hook this is.
    fn ifindex(&self) -> u32;
    /// Interface it came in on, 0 if this host made it.
    fn ingress_ifindex(&self) -> u32;
    /// It carries a VLAN tag.
    fn is_tagged(&self) -> bool;
    /// Overwrites bytes that no Internet checksum of the kernel's bookkeeping covers, or
    /// whose change another call accounts for.
    fn write<T: headers::Header>(&self, offset: usize, header: &T) -> Result<(), DropReason>;
    /// Mends a TCP or UDP checksum.
    fn update_l4_checksum(&self, offset: usize, change: L4Change) -> Result<(), DropReason>;
    /// Opens `len` bytes between the link-layer header and what follows, for an outer IP header
    /// behind which the packet stays what it is to offloads.
    fn encapsulate(&self, len: u32, ipv6: bool) -> Result<(), DropReason>;
}

/// A packet that can be copied, sent again and turned into another.
pub trait Buffer: Packet {
    /// Cuts the packet to `len` bytes.
    fn truncate(&self, len: u32) -> Result<(), DropReason>;
    /// Opens `len` bytes between the link-layer header and what follows.
    fn open_room(&self, len: u32) -> Result<(), DropReason>;
    /// Takes the first `len` bytes after the link-layer header out.
    fn decapsulate(&self, len: u32) -> Result<(), DropReason>;
    /// Copies `len` bytes at `offset` to the start of `bytes`.
    fn copy_out<const N: usize>(&self, offset: u32, bytes: &mut [u8; N], len: u32) -> Result<(), DropReason>;
    /// Makes the first `len` of `bytes` all that follows `offset`.
    fn replace<const N: usize>(&self, offset: u32, bytes: &[u8; N], len: u32) -> Result<(), DropReason>;
    /// Sends a copy out by an interface, or in.
    fn send_copy(&self, ifindex: u32, ingress: bool);
    /// Accounts for a change of the packet's bytes by `diff` that nothing in the packet balances.
    fn account(&self, diff: u32);
}

/// What a change of a transport checksum stems from.
#[derive(Clone, Copy)]
pub struct L4Change {
    /// Difference of the addresses, which the checksum covers through the pseudo header.
    pub addresses: u32,
    /// Difference of the ports, 0 if they stay.
    pub ports: u32,
    /// UDP: zero means no checksum (RFC 768).
    pub zero_is_none: bool,
    /// The addresses are IPv6: there is no header checksum to balance them.
    pub ipv6: bool,
}

//! A packet under the XDP hook: the frame as the driver received it.

use core::{arch::asm, ffi::c_void, marker::PhantomData};

use aya_ebpf::{bindings::xdp_md, helpers::generated as helper, programs::XdpContext};
use proxy_common::{
    DropReason, checksum,
    maps::events::Hook,
    packet::{
        Bytes, MAX_OFFSET,
        headers::{Header, Macs},
    },
};

use super::{L4Change, Packet, context_field};

/// How the Ethernet frames that a program handles begin.
pub trait Framing {
    /// Length of addresses, tag and EtherType.
    const L2_LEN: usize;
    /// The frame has one VLAN tag.
    const TAGGED: bool;
}

/// Addresses and EtherType.
pub struct Untagged;
impl Framing for Untagged {
    const L2_LEN: usize = 14;
    const TAGGED: bool = false;
}

/// Addresses, one VLAN tag, EtherType.
pub struct Tagged;
impl Framing for Tagged {
    const L2_LEN: usize = 18;
    const TAGGED: bool = true;
}

/// A frame. Of one in several buffers a program sees the first, which is then shorter than its
/// headers say.
pub struct Frame<F> {
    ctx: *mut xdp_md,
    framing: PhantomData<F>,
}

impl<F: Framing> Frame<F> {
    #[inline(always)]
    pub fn new(ctx: &XdpContext) -> Self {
        Self { ctx: ctx.ctx, framing: PhantomData }
    }

    /// The EtherType, in host order.
    #[inline(always)]
    pub fn ether_type(&self) -> u16 {
        self.read::<u16>(F::L2_LEN - size_of::<u16>()).map_or(0, u16::from_be)
    }

    /// Address of `len` bytes at `offset`, when the frame has them.
    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> Option<usize> {
        // Volatile, for the reason given in `Skb::at`.
        // SAFETY: the context is valid while the program runs.
        let (data, end) = unsafe {
            (
                core::ptr::read_volatile(&raw const (*self.ctx).data) as usize,
                core::ptr::read_volatile(&raw const (*self.ctx).data_end) as usize,
            )
        };
        let start = data + offset;
        if start + len > end { None } else { Some(start) }
    }
}

impl<F: Framing> Frame<F> {
    /// Brings the link-layer header to the front. It is read as a whole before any of it is written.
    #[inline(always)]
    fn move_l2(&self, from: usize) -> Result<(), DropReason> {
        let end = F::L2_LEN - size_of::<u16>();
        let cut_off = DropReason::RewriteFailed;
        let macs = self.read::<Macs>(from).ok_or(cut_off)?;
        let ether_type = self.read::<u16>(from + end).ok_or(cut_off)?;
        if F::TAGGED {
            let tag = self.read::<u32>(from + size_of::<Macs>()).ok_or(cut_off)?;
            self.write(size_of::<Macs>(), &tag)?;
        }
        self.write(end, &ether_type)?;
        self.write(0, &macs)
    }
}

impl<F: Framing> Bytes for Frame<F> {
    const L2_LEN: usize = F::L2_LEN;

    #[inline(always)]
    fn len(&self) -> u32 {
        // SAFETY: the context is valid while the program runs. The difference is taken in 64 bits, as the
        // verifier wants it of pointers; the compiler would do with 32.
        unsafe {
            let start = core::ptr::read_volatile(&raw const (*self.ctx).data) as usize;
            let mut end = core::ptr::read_volatile(&raw const (*self.ctx).data_end) as usize;
            asm!("{0} -= {1}", inout(reg) end, in(reg) start, options(pure, nomem, nostack));
            end as u32
        }
    }

    #[inline(always)]
    fn is_gso(&self) -> bool {
        false
    }

    #[inline(always)]
    fn read<T: Header>(&self, offset: usize) -> Option<T> {
        if offset > MAX_OFFSET {
            return None;
        }
        let at = self.at(offset, size_of::<T>())?;
        // SAFETY: as in `Skb::read`.
        Some(unsafe { core::ptr::read(at as *const T) })
    }
}

impl<F: Framing> Packet for Frame<F> {
    const ENTRY: Hook = Hook::XDP;

    #[inline(always)]
    fn context(&self) -> *mut c_void {
        self.ctx.cast()
    }

    #[inline(always)]
    fn segment_size(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn wire_packets(&self) -> u32 {
        1
    }

    #[inline(always)]
    fn is_tagged(&self) -> bool {
        F::TAGGED
    }

    #[inline(always)]
    fn ifindex(&self) -> u32 {
        context_field!(self.ctx, xdp_md, ingress_ifindex)
    }

    #[inline(always)]
    fn ingress_ifindex(&self) -> u32 {
        self.ifindex()
    }

    #[inline(always)]
    fn write<T: Header>(&self, offset: usize, header: &T) -> Result<(), DropReason> {
        if offset > MAX_OFFSET {
            return Err(DropReason::RewriteFailed);
        }
        let at = self.at(offset, size_of::<T>()).ok_or(DropReason::RewriteFailed)?;
        // SAFETY: `at` is inside the frame for the size of T; alignment as in `Skb::read`.
        unsafe { core::ptr::write(at as *mut T, *header) };
        Ok(())
    }

    #[inline(always)]
    fn update_l4_checksum(&self, offset: usize, change: L4Change) -> Result<(), DropReason> {
        let field = self.read::<u16>(offset).ok_or(DropReason::RewriteFailed)?;
        let updated = checksum::update_transport(field, change.addresses, change.ports, change.zero_is_none);
        self.write(offset, &updated)
    }

    #[inline(always)]
    fn encapsulate(&self, len: u32, _ipv6: bool) -> Result<(), DropReason> {
        // SAFETY: pointers into the frame are taken anew at every read.
        ok(unsafe { helper::bpf_xdp_adjust_head(self.ctx, -(len as i32)) })?;
        self.move_l2(len as usize)
    }
}

#[inline(always)]
fn ok(ret: i64) -> Result<(), DropReason> {
    if ret == 0 { Ok(()) } else { Err(DropReason::RewriteFailed) }
}

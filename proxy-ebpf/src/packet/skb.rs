//! A packet under a tc hook.

use core::{ffi::c_void, marker::PhantomData};

use aya_ebpf::{
    bindings::{
        __sk_buff, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_ADJ_ROOM_FIXED_GSO,
        BPF_F_INGRESS, BPF_F_INVALIDATE_HASH, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM,
        bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
    },
    helpers::generated as helper,
    programs::TcContext,
};
use proxy_common::{
    DropReason,
    maps::events::Hook,
    packet::{
        Bytes, MAX_OFFSET,
        headers::{Header, Ipv4},
        masked,
    },
};

use super::{Buffer, L4Change, Packet, context_field};

/// `bpf_l4_csum_replace`: the addresses are IPv6. Kernels before 6.16 do not know it.
const BPF_F_IPV6: u64 = 1 << 7;
const EINVAL: i64 = -22;

/// How the packets of a device begin.
pub trait Link {
    const L2_LEN: usize;
}

/// Devices with an Ethernet header.
pub struct Ethernet;
impl Link for Ethernet {
    const L2_LEN: usize = 14;
}

/// Devices whose packets begin with the IP header, such as WireGuard and IPIP.
pub struct Layer3;
impl Link for Layer3 {
    const L2_LEN: usize = 0;
}

/// A socket buffer of a device of kind `L`.
pub struct Skb<L> {
    skb: *mut __sk_buff,
    link: PhantomData<L>,
}

impl<L: Link> Skb<L> {
    #[inline(always)]
    pub fn new(ctx: &TcContext) -> Self {
        Self { skb: ctx.skb.skb, link: PhantomData }
    }

    /// The EtherType, in host order.
    #[inline(always)]
    pub fn ether_type(&self) -> u16 {
        // SAFETY: the context is valid while the program runs.
        u16::from_be(unsafe { (*self.skb).protocol } as u16)
    }

    /// Address of `len` bytes at `offset` when they lie in the linear part.
    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> Option<usize> {
        // Volatile, so that each check loads both anew: a value kept over a branch is widened to 64 bits by
        // an instruction of its own, after which the verifier no longer knows it for a packet pointer.
        // SAFETY: the context is valid while the program runs.
        let (data, end) = unsafe {
            (
                core::ptr::read_volatile(&raw const (*self.skb).data) as usize,
                core::ptr::read_volatile(&raw const (*self.skb).data_end) as usize,
            )
        };
        let start = data + offset;
        if start + len > end { None } else { Some(start) }
    }
}

impl<L: Link> Bytes for Skb<L> {
    const L2_LEN: usize = L::L2_LEN;

    #[inline(always)]
    fn len(&self) -> u32 {
        context_field!(self.skb, __sk_buff, len)
    }

    #[inline(always)]
    fn is_gso(&self) -> bool {
        self.segment_size() != 0
    }

    #[inline(always)]
    fn read<T: Header>(&self, offset: usize) -> Option<T> {
        if offset > MAX_OFFSET {
            return None;
        }
        let at = match self.at(offset, size_of::<T>()) {
            Some(at) => at,
            None => {
                // The bytes may lie in a fragment: have the kernel bring them to the front.
                // SAFETY: the context is valid; pointers into the packet are taken anew below.
                if unsafe { helper::bpf_skb_pull_data(self.skb, (offset + size_of::<T>()) as u32) } != 0 {
                    return None;
                }
                self.at(offset, size_of::<T>())?
            }
        };
        // SAFETY: `at` is inside the packet for the size of T, and any bytes are a T. It may not be
        // aligned for T: BPF loads of packet memory need not be, where the kernel says so
        // (HAVE_EFFICIENT_UNALIGNED_ACCESS: x86-64, arm64), and byte loads cost four times as much.
        Some(unsafe { core::ptr::read(at as *const T) })
    }
}

impl<L: Link> Packet for Skb<L> {
    const ENTRY: Hook = Hook::INGRESS;

    #[inline(always)]
    fn context(&self) -> *mut c_void {
        self.skb.cast()
    }

    #[inline(always)]
    fn segment_size(&self) -> u32 {
        context_field!(self.skb, __sk_buff, gso_size)
    }

    #[inline(always)]
    fn wire_packets(&self) -> u32 {
        let segments = context_field!(self.skb, __sk_buff, gso_segs);
        if segments == 0 { 1 } else { segments }
    }

    #[inline(always)]
    fn is_tagged(&self) -> bool {
        context_field!(self.skb, __sk_buff, vlan_present) != 0
    }

    #[inline(always)]
    fn ifindex(&self) -> u32 {
        context_field!(self.skb, __sk_buff, ifindex)
    }

    #[inline(always)]
    fn ingress_ifindex(&self) -> u32 {
        context_field!(self.skb, __sk_buff, ingress_ifindex)
    }

    #[inline(always)]
    fn write<T: Header>(&self, offset: usize, header: &T) -> Result<(), DropReason> {
        // SAFETY: the helper copies size_of::<T>() initialised bytes and checks the offset.
        let ret = unsafe {
            helper::bpf_skb_store_bytes(
                self.skb,
                offset as u32,
                core::ptr::from_ref(header).cast(),
                size_of::<T>() as u32,
                0,
            )
        };
        ok(ret)
    }

    #[inline(always)]
    fn update_l4_checksum(&self, offset: usize, change: L4Change) -> Result<(), DropReason> {
        let zero = if change.zero_is_none { u64::from(BPF_F_MARK_MANGLED_0) } else { 0 };
        // SAFETY: the helper checks the offset.
        let replace = |diff: u32, flags: u64| unsafe {
            helper::bpf_l4_csum_replace(self.skb, offset as u32, 0, u64::from(diff), flags | zero)
        };
        let pseudo = u64::from(BPF_F_PSEUDO_HDR);
        let known = if change.ipv6 { replace(change.addresses, pseudo | BPF_F_IPV6) } else { EINVAL };
        ok(if known == EINVAL { replace(change.addresses, pseudo) } else { known })?;
        if change.ports == 0 { Ok(()) } else { ok(replace(change.ports, 0)) }
    }

    #[inline(always)]
    fn encapsulate(&self, len: u32, ipv6: bool) -> Result<(), DropReason> {
        let kind = if ipv6 { BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 } else { BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 };
        let flags = u64::from(kind) | u64::from(BPF_F_ADJ_ROOM_FIXED_GSO);
        // SAFETY: pointers into the packet are taken anew at every read.
        ok(unsafe { helper::bpf_skb_adjust_room(self.skb, len as i32, BPF_ADJ_ROOM_MAC, flags) })
    }
}

impl<L: Link> Buffer for Skb<L> {
    #[inline(always)]
    fn truncate(&self, len: u32) -> Result<(), DropReason> {
        // SAFETY: pointers into the packet are taken anew at every read.
        ok(unsafe { helper::bpf_skb_change_tail(self.skb, len, 0) })
    }

    #[inline(always)]
    fn open_room(&self, len: u32) -> Result<(), DropReason> {
        // SAFETY: pointers into the packet are taken anew at every read.
        ok(unsafe { helper::bpf_skb_adjust_room(self.skb, len as i32, BPF_ADJ_ROOM_MAC, 0) })
    }

    #[inline(always)]
    fn decapsulate(&self, len: u32) -> Result<(), DropReason> {
        let flags = u64::from(BPF_F_ADJ_ROOM_FIXED_GSO);
        // SAFETY: pointers into the packet are taken anew at every read.
        ok(unsafe { helper::bpf_skb_adjust_room(self.skb, -(len as i32), BPF_ADJ_ROOM_MAC, flags) })
    }

    #[inline(always)]
    fn copy_out<const N: usize>(&self, offset: u32, bytes: &mut [u8; N], len: u32) -> Result<(), DropReason> {
        let len = length::<N>(len).ok_or(DropReason::RewriteFailed)?;
        // SAFETY: there is room for `len` bytes; the helper checks that the packet has them.
        ok(unsafe { helper::bpf_skb_load_bytes(self.skb.cast(), offset, bytes.as_mut_ptr().cast(), len) })
    }

    #[inline(always)]
    fn replace<const N: usize>(&self, offset: u32, bytes: &[u8; N], len: u32) -> Result<(), DropReason> {
        let len = length::<N>(len).ok_or(DropReason::RewriteFailed)?;
        self.truncate(offset + len)?;
        let flags = u64::from(BPF_F_RECOMPUTE_CSUM) | u64::from(BPF_F_INVALIDATE_HASH);
        // SAFETY: there are `len` bytes; the helper checks the offset.
        ok(unsafe { helper::bpf_skb_store_bytes(self.skb, offset, bytes.as_ptr().cast(), len, flags) })
    }

    #[inline(always)]
    fn send_copy(&self, ifindex: u32, ingress: bool) {
        let flags = if ingress { u64::from(BPF_F_INGRESS) } else { 0 };
        // SAFETY: pointers into the packet are taken anew at every read. A copy that cannot be made is
        // lost like any packet on its way.
        let _ = unsafe { helper::bpf_clone_redirect(self.skb, ifindex, flags) };
    }

    #[inline(always)]
    fn account(&self, diff: u32) {
        // It fails where the kernel keeps no sum of the packet, and then there is nothing to account for.
        // SAFETY: the context is valid while the program runs.
        let _ = unsafe { helper::bpf_csum_update(self.skb, diff) };
    }
}

/// `len`, if it is that of an IP packet with room in `N` bytes.
///
/// The compiler would make one comparison of the two, from which the verifier of 6.1 does not see
/// that there is a lower bound (`reg_set_min_max` in kernel/bpf/verifier.c).
#[inline(always)]
fn length<const N: usize>(len: u32) -> Option<u32> {
    if len > N as u32 {
        return None;
    }
    let len = masked::<0x3fff>(len as usize);
    if len < size_of::<Ipv4>() { None } else { Some(len as u32) }
}

#[inline(always)]
fn ok(ret: i64) -> Result<(), DropReason> {
    if ret == 0 { Ok(()) } else { Err(DropReason::RewriteFailed) }
}

//! The way to an address, by the host's routing tables.

use aya_ebpf::{
    bindings::{
        BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup,
    },
    helpers::generated as helper,
};
use proxy_common::Tuple;

use super::network::Network;
use crate::packet::Packet;

/// What the routing tables say of a tuple.
pub struct Route {
    pub answer: Answer,
    /// The device it leaves by, if there is a way.
    pub ifindex: u32,
    /// Largest packet of the way, with [`Answer::TooBig`], and with [`Answer::Reachable`] if a length was asked for.
    pub mtu: u32,
    /// Link-layer address of the device, with [`Answer::Reachable`].
    pub src_mac: [u8; 6],
    /// Link-layer address of the next hop, with [`Answer::Reachable`].
    pub dst_mac: [u8; 6],
}

/// How an answer of the routing tables turns out.
#[derive(Clone, Copy, PartialEq)]
pub enum Answer {
    /// There is a way, and the next hop's link-layer address is known.
    Reachable,
    /// There is a way; the next hop has to be asked for its address.
    Unresolved,
    /// There is a way, too narrow for the packet.
    TooBig,
    /// The host does not forward there.
    None,
}

/// Asks for the way of `tuple`, as the stack would for a packet of `len` bytes that came in
/// where this one did. With `len` 0 any size fits.
#[inline(always)]
pub fn find<P: Packet, A: Network>(packet: &P, tuple: &Tuple<A>, len: u16) -> Route {
    // SAFETY: plain integers, for which zero is a valid value.
    let mut params: bpf_fib_lookup = unsafe { core::mem::zeroed() };
    params.ifindex = packet.ifindex();
    params.l4_protocol = tuple.proto;
    params.__bindgen_anon_1.tot_len = len;
    // The kernel has no route for what comes from ::1; the source changes before it leaves anyway.
    let src = if tuple.src.is_loopback() { A::default() } else { tuple.src };
    A::route_key(&mut params, &src, &tuple.dst);
    // SAFETY: the context belongs to the running program; params is initialised and of the size given.
    let ret = unsafe {
        helper::bpf_fib_lookup(packet.context(), &raw mut params, size_of::<bpf_fib_lookup>() as i32, 0)
    };
    let answer = match ret as u32 {
        BPF_FIB_LKUP_RET_SUCCESS => Answer::Reachable,
        BPF_FIB_LKUP_RET_NO_NEIGH => Answer::Unresolved,
        BPF_FIB_LKUP_RET_FRAG_NEEDED => Answer::TooBig,
        _ => Answer::None,
    };
    // SAFETY: both members of the union are the same integer.
    let mtu = unsafe { params.__bindgen_anon_1.mtu_result };
    Route { answer, ifindex: params.ifindex, mtu: u32::from(mtu), src_mac: params.smac, dst_mac: params.dmac }
}

//! Who calls.

use aya_ebpf::{
    EbpfContext as _, bindings::bpf_sock, helpers::generated as helper, programs::SockAddrContext,
};
use proxy_common::{Ip4, Ip6};

use super::place::{Peer, from_words};
use crate::{
    maps::{self, Tables},
    stage::select::chance,
};

/// What stands for the client of a socket.
pub trait Client: Tables {
    /// The address the socket is bound to, unspecified if none.
    fn bound(sk: *mut bpf_sock) -> Self;
    /// The address the socket is connected to, unspecified if none.
    fn connected(sk: *mut bpf_sock) -> Self;
    /// An address that nobody can have, one for each network namespace.
    fn of_netns(cookie: u64) -> Self;
}

impl Client for Ip4 {
    #[inline(always)]
    fn bound(sk: *mut bpf_sock) -> Self {
        // SAFETY: the kernel gives every socket hook a valid socket.
        Ip4 { octets: unsafe { (*sk).src_ip4 }.to_ne_bytes() }
    }

    #[inline(always)]
    fn connected(sk: *mut bpf_sock) -> Self {
        // SAFETY: as in `bound`.
        Ip4 { octets: unsafe { (*sk).dst_ip4 }.to_ne_bytes() }
    }

    #[inline(always)]
    fn of_netns(cookie: u64) -> Self {
        // 0.0.0.0/8 is never a source on the wire (RFC 1122 §3.2.1.3).
        let [_, b, c, d] = (cookie as u32).to_be_bytes();
        Ip4 { octets: [0, b, c, d] }
    }
}

impl Client for Ip6 {
    #[inline(always)]
    fn bound(sk: *mut bpf_sock) -> Self {
        // SAFETY: the kernel gives every socket hook a valid socket.
        from_words(unsafe { [(*sk).src_ip6[0], (*sk).src_ip6[1], (*sk).src_ip6[2], (*sk).src_ip6[3]] })
    }

    #[inline(always)]
    fn connected(sk: *mut bpf_sock) -> Self {
        // SAFETY: as in `bound`.
        from_words(unsafe { [(*sk).dst_ip6[0], (*sk).dst_ip6[1], (*sk).dst_ip6[2], (*sk).dst_ip6[3]] })
    }

    #[inline(always)]
    fn of_netns(cookie: u64) -> Self {
        // ::/64 is reserved (RFC 4291 §4).
        from_words([0, 0, ((cookie >> 32) as u32).to_be(), (cookie as u32).to_be()])
    }
}

/// The socket of a call.
#[inline(always)]
pub fn socket(ctx: &SockAddrContext) -> *mut bpf_sock {
    // SAFETY: the context is valid while the program runs.
    unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk }
}

/// True if the socket of a call is connected.
#[inline(always)]
pub fn is_connected(ctx: &SockAddrContext) -> bool {
    // `TCP_ESTABLISHED` (net/tcp_states.h), which UDP has, too.
    const ESTABLISHED: u32 = 1;
    // SAFETY: as in `Client::bound`.
    unsafe { (*socket(ctx)).state == ESTABLISHED }
}

/// Whom the socket of a call is connected to, as its packets say it.
#[inline(always)]
pub fn connected_to<A: Client>(ctx: &SockAddrContext) -> Peer<A> {
    let sk = socket(ctx);
    // SAFETY: as in `Client::bound`; the field is in network order.
    Peer { addr: A::connected(sk), port: u16::from_be(unsafe { (*sk).dst_port }) }
}

/// The port that the socket of a call is bound to. One that is not gets it only after the hook: any will do.
#[inline(always)]
pub fn port(ctx: &SockAddrContext) -> u16 {
    // SAFETY: as in `Client::bound`; the field is in host order.
    let bound = unsafe { (*socket(ctx)).src_port } as u16;
    if bound == 0 { chance() as u16 } else { bound }
}

/// `bpf_get_netns_cookie` of the caller.
#[inline(always)]
pub fn netns(ctx: &SockAddrContext) -> u64 {
    // SAFETY: the helper takes this kind of context.
    unsafe { helper::bpf_get_netns_cookie(ctx.as_ptr()) }
}

/// Whom the connections of a socket are told apart by.
pub struct Identity<A> {
    /// The address that its packets will have, or the one that stands for its network namespace where that is
    /// not known.
    pub addr: A,
    /// Whom affinity goes by.
    pub sticks_as: A,
}

/// A socket that is not bound gets its address only after the hook. It counts as the same client as those that
/// are bound to the address of its network namespace: for a pod they are one.
#[inline(always)]
pub fn identify<A: Client>(bound: A, netns: u64) -> Identity<A> {
    let stand_in = A::of_netns(netns);
    let known = maps::netns_address::<A>(netns);
    if bound.is_unspecified() {
        return Identity { addr: known.map_or(stand_in, |known| *known), sticks_as: stand_in };
    }
    let is_of_netns = match known {
        Some(known) => *known == bound,
        None => !bound.is_loopback() && maps::claim_netns_address(netns, &bound),
    };
    Identity { addr: bound, sticks_as: if is_of_netns { stand_in } else { bound } }
}

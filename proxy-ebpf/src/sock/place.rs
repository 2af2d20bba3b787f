//! Where a call has the address of its peer.

use aya_ebpf::{bindings::bpf_sock_addr, programs::SockAddrContext};
use proxy_common::{Addr as _, Ip4, Ip6};

use super::client::Client;

/// The fields of the context that hold an address.
pub trait Place {
    type Addr: Client;

    const FIELDS: Fields;

    fn addr(sock: *mut bpf_sock_addr) -> Self::Addr;
    fn set_addr(sock: *mut bpf_sock_addr, addr: &Self::Addr);
}

/// Names a [`Place`] where there can be no parameter of type.
pub enum Fields {
    V4,
    V6,
    Mapped,
}

/// Declares a function that calls a global one for its place: these have no parameters of type. The body has.
macro_rules! global_by_place {
    ($(
        $(#[$doc:meta])*
        $visibility:vis fn $name:ident($($argument:ident: $type:ty),*) = $body:ident as $v4:ident, $v6:ident, $mapped:ident;
    )+) => {$(
        $(#[$doc])*
        #[inline(always)]
        $visibility fn $name<P: $crate::sock::place::Place>($($argument: $type),*) -> u32 {
            use $crate::sock::place::Fields;
            match P::FIELDS {
                Fields::V4 => $v4($($argument),*),
                Fields::V6 => $v6($($argument),*),
                Fields::Mapped => $mapped($($argument),*),
            }
        }

        $crate::global::global_functions! {
            fn $v4($($argument: $type),*) = $body::<$crate::sock::place::V4>;
            fn $v6($($argument: $type),*) = $body::<$crate::sock::place::V6>;
            fn $mapped($($argument: $type),*) = $body::<$crate::sock::place::Mapped>;
        }
    )+};
}
pub(crate) use global_by_place;

/// Of an IPv4 socket.
pub struct V4;
/// Of an IPv6 socket.
pub struct V6;
/// An IPv4 address in the place of an IPv6 address: the IPv4 hooks are not called for an IPv6 socket that
/// speaks IPv4.
pub struct Mapped;

impl Place for V4 {
    type Addr = Ip4;

    const FIELDS: Fields = Fields::V4;

    #[inline(always)]
    fn addr(sock: *mut bpf_sock_addr) -> Ip4 {
        // SAFETY: the context is valid while the program runs, and IPv4 hooks may use this field.
        Ip4 { octets: unsafe { (*sock).user_ip4 }.to_ne_bytes() }
    }

    #[inline(always)]
    fn set_addr(sock: *mut bpf_sock_addr, addr: &Ip4) {
        // SAFETY: as for `addr`.
        unsafe { (*sock).user_ip4 = u32::from_ne_bytes(addr.octets) };
    }
}

impl Place for V6 {
    type Addr = Ip6;

    const FIELDS: Fields = Fields::V6;

    #[inline(always)]
    fn addr(sock: *mut bpf_sock_addr) -> Ip6 {
        from_words(user_ip6(sock))
    }

    #[inline(always)]
    fn set_addr(sock: *mut bpf_sock_addr, addr: &Ip6) {
        let words = addr.words();
        // SAFETY: as for `user_ip6`; each word is written on its own, as the kernel demands.
        unsafe {
            (*sock).user_ip6[0] = words[0];
            (*sock).user_ip6[1] = words[1];
            (*sock).user_ip6[2] = words[2];
            (*sock).user_ip6[3] = words[3];
        }
    }
}

impl Place for Mapped {
    type Addr = Ip4;

    const FIELDS: Fields = Fields::Mapped;

    #[inline(always)]
    fn addr(sock: *mut bpf_sock_addr) -> Ip4 {
        Ip4 { octets: user_ip6(sock)[3].to_ne_bytes() }
    }

    #[inline(always)]
    fn set_addr(sock: *mut bpf_sock_addr, addr: &Ip4) {
        // SAFETY: as for `user_ip6`.
        unsafe { (*sock).user_ip6[3] = u32::from_ne_bytes(addr.octets) };
    }
}

impl Mapped {
    /// True if the call's IPv6 address is a mapped one.
    #[inline(always)]
    pub fn is_in(sock: *mut bpf_sock_addr) -> bool {
        let words = user_ip6(sock);
        words[0] == 0 && words[1] == 0 && words[2] == 0xffffu32.to_be()
    }
}

#[inline(always)]
fn user_ip6(sock: *mut bpf_sock_addr) -> [u32; 4] {
    // SAFETY: the context is valid while the program runs, and IPv6 hooks may use this field.
    unsafe { [(*sock).user_ip6[0], (*sock).user_ip6[1], (*sock).user_ip6[2], (*sock).user_ip6[3]] }
}

/// An address from the words of the wire.
#[inline(always)]
pub fn from_words(words: [u32; 4]) -> Ip6 {
    let mut octets = [0; 16];
    let mut i = 0;
    while i < 16 {
        octets[i] = words[i / 4].to_ne_bytes()[i % 4];
        i += 1;
    }
    Ip6 { octets }
}

/// The port in the call.
#[inline(always)]
pub fn port(sock: *mut bpf_sock_addr) -> u16 {
    // SAFETY: the context is valid while the program runs; the port is in the low half, network order.
    u16::from_be(unsafe { (*sock).user_port } as u16)
}

/// An address and a port that a socket speaks to.
pub struct Peer<A> {
    pub addr: A,
    pub port: u16,
}

/// A call with its peer.
pub struct Call<'a, P: Place> {
    pub ctx: &'a SockAddrContext,
    pub peer: Peer<P::Addr>,
    /// IANA protocol number.
    pub proto: u8,
}

impl<'a, P: Place> Call<'a, P> {
    #[inline(always)]
    pub fn new(ctx: &'a SockAddrContext) -> Self {
        let sock = ctx.sock_addr;
        // SAFETY: the context is valid while the program runs.
        let proto = unsafe { (*sock).protocol } as u8;
        Self { ctx, peer: Peer { addr: P::addr(sock), port: port(sock) }, proto }
    }

    /// Puts another peer in the place of the call's.
    #[inline(always)]
    pub fn replace(&self, addr: &P::Addr, port: u16) {
        let sock = self.ctx.sock_addr;
        P::set_addr(sock, addr);
        // SAFETY: as for `port`.
        unsafe { (*sock).user_port = u32::from(port.to_be()) };
    }
}

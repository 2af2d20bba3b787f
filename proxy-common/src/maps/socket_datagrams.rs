//! `socket_datagrams_v4`, `socket_datagrams_v6`: storage of sockets, what socket LB did to a UDP socket. It goes
//! with the socket.
//!
//! The program sees by it the frontend it spoke to in `recvmsg` and `getpeername`, a socket that is not
//! connected stays with its backend, and the agent finds the sockets that are connected to a backend that
//! goes. Threads share a socket: each pair has a version, as a sequence lock has.

use super::{assert_size, pod};
use crate::addr::{Ip4, Ip6};

/// Pairs that a socket remembers of datagrams it sent without being connected. The one that was used longest ago
/// is forgotten for a new one.
pub const SENT: usize = 12;

/// A frontend, and the backend it stood for. The service is 0 where there is none: where the program named the backend
/// itself, which stands in both places then, and where the pair was removed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SocketPair<A> {
    /// Address of the frontend.
    pub frontend: A,
    /// Address of the backend.
    pub backend: A,
    /// Port of the frontend.
    pub frontend_port: u16,
    /// Port of the backend.
    pub backend_port: u16,
    /// Key in `services`.
    pub service: u32,
    /// Key in `backends`.
    pub backend_id: u32,
}

impl<A: Copy + PartialEq> SocketPair<A> {
    /// Of a program that named the backend itself.
    #[inline(always)]
    pub fn direct(backend: A, port: u16) -> Self {
        Self {
            frontend: backend,
            backend,
            frontend_port: port,
            backend_port: port,
            service: 0,
            backend_id: 0,
        }
    }

    /// True if the program named the backend itself.
    #[inline(always)]
    pub fn is_direct(&self) -> bool {
        self.service == 0 && self.frontend_port == self.backend_port && self.frontend == self.backend
    }

    /// True if the program is to see the frontend.
    #[inline(always)]
    pub fn holds(&self) -> bool {
        self.service != 0 || self.is_direct()
    }
}

/// A pair that may be replaced while it is read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeldPair<A> {
    /// Twice the number of its last use, counted per socket from 1; odd while somebody writes it, 0 if nobody
    /// ever has.
    pub version: u64,
    /// The pair.
    pub pair: SocketPair<A>,
    /// Zero.
    pub pad: u32,
}

/// What a socket speaks to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SocketDatagrams<A> {
    /// `bpf_get_socket_cookie`, high and low half.
    pub cookie: [u32; 2],
    /// Uses so far, but for those of the pair that was used last.
    pub written: u64,
    /// Of `connect`.
    pub connected: HeldPair<A>,
    /// Of `sendmsg` with an address, and of `connect` before the last one.
    pub sent: [HeldPair<A>; SENT],
}

/// What a pair of a socket is of.
pub mod kind {
    /// `sendmsg` with an address; the socket has never been connected to a service.
    pub const SENT: u32 = 0;
    /// The last `connect`.
    pub const CONNECTED: u32 = 1;
    /// `sendmsg`, or an earlier `connect`. The socket is connected so still if the kernel refused the last one.
    pub const EARLIER: u32 = 2;
}

/// A pair of a socket, as `list_sockets_v4` and `list_sockets_v6` show it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ListedPair<A> {
    /// `bpf_get_socket_cookie`, high and low half.
    pub cookie: [u32; 2],
    /// One of [`kind`]: 1 of the last `connect`; else 2 if the socket has been connected to a service, 0 if not.
    pub kind: u32,
    /// The pair.
    pub pair: SocketPair<A>,
}

assert_size!(
    SocketPair<Ip4> = 20,
    SocketPair<Ip6> = 44,
    HeldPair<Ip4> = 32,
    HeldPair<Ip6> = 56,
    SocketDatagrams<Ip4> = 432,
    SocketDatagrams<Ip6> = 744,
    ListedPair<Ip4> = 32,
    ListedPair<Ip6> = 56,
);
pod!(SocketPair<A>, HeldPair<A>, SocketDatagrams<A>, ListedPair<A>);

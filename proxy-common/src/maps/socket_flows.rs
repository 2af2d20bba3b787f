//! `socket_flows_v4`, `socket_flows_v6`: LRU hash, what socket LB did to a UDP socket.
//!
//! A row from the backend, so that the program sees the frontend it spoke to in `recvmsg` and
//! `getpeername`, and the agent finds the sockets that are connected to a backend that goes. Where the
//! socket sends without connecting, another from the frontend, so that it stays with its backend.

use super::{assert_size, pod};
use crate::addr::{Ip4, Ip6};

/// Default number of rows per family.
pub const CAPACITY: u32 = 131_072;

/// A peer of a socket.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SocketFlowKey<A> {
    /// `bpf_get_socket_cookie`, high and low half: a u64 would need padding in the IPv6 key.
    pub cookie: [u32; 2],
    /// Address of the peer.
    pub addr: A,
    /// Port of the peer.
    pub port: u16,
    /// IANA protocol number.
    pub proto: u8,
    /// [`TO_BACKEND`] or [`TO_FRONTEND`].
    pub direction: u8,
}

/// The key's peer is a frontend, the value's a backend.
pub const TO_BACKEND: u8 = 0;
/// The key's peer is a backend, the value's a frontend.
pub const TO_FRONTEND: u8 = 1;

/// The peer to show or to use instead.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SocketFlow<A> {
    /// Address of the other peer.
    pub addr: A,
    /// Port of the other peer.
    pub port: u16,
    /// Zero.
    pub pad: u16,
    /// Key in `services`.
    pub service: u32,
    /// Key in `backends`.
    pub backend: u32,
}

assert_size!(SocketFlowKey<Ip4> = 16, SocketFlowKey<Ip6> = 28, SocketFlow<Ip4> = 16, SocketFlow<Ip6> = 28);
pod!(SocketFlowKey<A>, SocketFlow<A>);

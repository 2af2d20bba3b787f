//! `socket_peers_v4`, `socket_peers_v6`: storage of sockets, what socket LB did to a TCP socket. It goes
//! with the socket.

use super::{assert_size, pod};
use crate::addr::{Ip4, Ip6};

/// The address that a program connected to, and the one that it got.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SocketPeer<A> {
    /// Address of the frontend.
    pub frontend: A,
    /// Address of the backend.
    pub backend: A,
    /// Port of the frontend.
    pub frontend_port: u16,
    /// Port of the backend.
    pub backend_port: u16,
}

assert_size!(SocketPeer<Ip4> = 12, SocketPeer<Ip6> = 36);
pod!(SocketPeer<A>);

//! Rows of `socket_flows`: what becomes of a socket's datagrams.

use aya_ebpf::{EbpfContext as _, helpers::generated as helper};
use proxy_common::maps::socket_flows::{SocketFlow, SocketFlowKey, TO_BACKEND};

use super::place::{Call, Peer, Place};
use crate::maps;

/// The key of the row for this peer of the call's socket.
#[inline(always)]
pub fn key<P: Place>(call: &Call<P>, peer: &Peer<P::Addr>, direction: u8) -> SocketFlowKey<P::Addr> {
    // SAFETY: the helper takes this kind of context.
    let cookie = unsafe { helper::bpf_get_socket_cookie(call.ctx.as_ptr()) };
    SocketFlowKey {
        cookie: [(cookie >> 32) as u32, cookie as u32],
        addr: peer.addr,
        port: peer.port,
        proto: call.proto,
        direction,
    }
}

/// Notes that the frontend which the call names led to the backend.
#[inline(always)]
pub fn remember<P: Place>(call: &Call<P>, direction: u8, backend: (P::Addr, u16), service: u32, id: u32) {
    let frontend = Peer { addr: call.peer.addr, port: call.peer.port };
    let backend = Peer { addr: backend.0, port: backend.1 };
    let (from, to) = if direction == TO_BACKEND { (frontend, backend) } else { (backend, frontend) };
    let flow = SocketFlow { addr: to.addr, port: to.port, pad: 0, service, backend: id };
    maps::put_socket_flow(&key(call, &from, direction), &flow);
}

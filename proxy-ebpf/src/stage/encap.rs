//! Direct server return, at the node that the client reached: the packet goes to the
//! backend's node as it is, inside another (RFC 2003, RFC 2473).
//!
//! The outer packet is addressed to the backend itself, so the routes that carry pod
//! traffic carry it too, whatever network made them, and the node it ends at is the one
//! that takes it out again.

use proxy_common::{
    DropReason, Tuple,
    packet::{
        Bytes, Transport,
        headers::{Tcp, Udp},
    },
    proto,
};

use super::{
    network::Network,
    output::{How, Output},
    route::{self, Answer, Route},
    select::Refusal,
    snat,
};
use crate::packet::Packet;

/// Length of the packet by its IP header, without what a short frame is padded with.
#[inline(always)]
pub fn inner_len<P: Bytes, A>(transport: &Transport<A>) -> u32 {
    (transport.offset - P::L2_LEN) as u32 + transport.len
}

/// The way of a packet of `inner_len` bytes to a backend's node.
#[inline(always)]
pub fn route<P: Packet, A: Network>(packet: &P, backend: &A, inner_len: u32) -> Route {
    let len = inner_len + A::HEADER_LEN;
    let len = if len > 0xffff { 0xffff } else { len as u16 };
    let outer = Tuple { src: A::default(), dst: *backend, sport: 0, dport: 0, proto: A::ENCAPSULATED };
    route::find(packet, &outer, len)
}

/// Puts the outer header before the packet.
#[inline(always)]
pub fn encapsulate<P: Packet, A: Network>(
    packet: &P,
    node: &A,
    backend: &A,
    inner_len: u32,
) -> Result<(), DropReason> {
    packet.encapsulate(A::HEADER_LEN, A::VERSION == 6)?;
    A::write_outer(packet, node, backend, inner_len)
}

/// Sends the packet to the backend's node, past the stack.
#[inline(always)]
pub fn send<P: Packet, A: Network>(
    packet: &P,
    transport: &Transport<A>,
    backend: &A,
) -> Result<Output, Refusal> {
    let way = route(packet, backend, segment_len(packet, transport));
    match way.answer {
        Answer::Reachable | Answer::Unresolved => {}
        Answer::TooBig => return Err(Refusal::too_big(way.mtu.saturating_sub(A::HEADER_LEN))),
        Answer::None => return Err(DropReason::NoRoute.into()),
    }
    let node = snat::address::<A>(way.ifindex)?;
    if A::hops(packet).is_some_and(|hops| hops > 1) {
        A::age(packet)?;
    }
    encapsulate(packet, node, backend, inner_len::<P, A>(transport))?;
    Ok(Output::by(How::Neighbour, way.ifindex))
}

/// Length of the longest packet that this one will be on the wire.
#[inline(always)]
fn segment_len<P: Packet, A>(packet: &P, transport: &Transport<A>) -> u32 {
    if !packet.is_gso() {
        return inner_len::<P, A>(transport);
    }
    let at = transport.header();
    let header = match transport.proto {
        proto::TCP => packet.read::<Tcp>(at).map_or(0, |tcp| u32::from(tcp.offset >> 4) * 4),
        _ => size_of::<Udp>() as u32,
    };
    (at - P::L2_LEN) as u32 + header + packet.segment_size()
}

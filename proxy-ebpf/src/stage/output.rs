//! Packets that do not simply go on: those of host processes that the socket hooks did
//! not translate.
//!
//! Such a packet was routed to the frontend's address before we see it, so after DNAT it
//! is sent by the route of the backend, and the reply enters the stack where the
//! frontend's route would have brought it in: the stack sees one connection between host
//! and frontend, and no martian.

use proxy_common::{DropReason, Tuple, packet::headers::Macs};

use super::{
    network::Network,
    route::{self, Answer},
};
use crate::{maps, packet::Packet};

/// The loopback device has this index in every network namespace.
pub const LOOPBACK: u32 = 1;

/// A way out for a packet. A struct whose fields are always set, and no enum with a value
/// in some variants: the compiler may fill a value that is not there from a stack slot
/// which holds a pointer, and the verifier refuses to read half of one.
#[derive(Clone, Copy)]
pub struct Output {
    pub how: How,
    /// 0 where none is needed.
    pub ifindex: u32,
}

/// How a packet goes on.
#[derive(Clone, Copy, PartialEq)]
pub enum How {
    /// Along the stack's path.
    Continue,
    /// Out by the interface, to the neighbour its routes name.
    Neighbour,
    /// Out by the interface as it is.
    Transmit,
    /// Into the stack as if it came in by the interface.
    Receive,
    /// Not at all.
    Drop,
}

impl Output {
    pub const CONTINUE: Self = Self { how: How::Continue, ifindex: 0 };
    pub const DROP: Self = Self { how: How::Drop, ifindex: 0 };

    #[inline(always)]
    pub fn by(how: How, ifindex: u32) -> Self {
        Self { how, ifindex }
    }
}

/// The way from the host to a backend: its interface, or loopback if it is the host's own address.
#[inline(always)]
pub fn route<P: Packet, A: Network>(packet: &P, tuple: &Tuple<A>) -> Result<u32, DropReason> {
    if maps::node_address(&tuple.dst).is_some() {
        return Ok(LOOPBACK);
    }
    let route = route::find(packet, tuple, 0);
    match route.answer {
        Answer::Reachable | Answer::Unresolved => Ok(route.ifindex),
        Answer::TooBig | Answer::None => Err(DropReason::NoRoute),
    }
}

/// Sends a host process's packet by the way that [`route`] found.
#[inline(always)]
pub fn send_by<P: Packet>(packet: &P, out: u32) -> Result<Output, DropReason> {
    if out == LOOPBACK {
        address_to(packet, out)?;
        return Ok(Output::by(How::Receive, out));
    }
    Ok(Output::by(How::Neighbour, out))
}

/// Addresses the frame to the interface whose ingress is to take it.
#[inline(always)]
pub fn address_to<P: Packet>(packet: &P, ifindex: u32) -> Result<(), DropReason> {
    if P::L2_LEN == 0 {
        return Ok(());
    }
    let dst = maps::device(ifindex).map(|d| d.mac).unwrap_or_default();
    let macs = packet.read::<Macs>(0).ok_or(DropReason::RewriteFailed)?;
    packet.write(0, &Macs { dst, ..macs })
}

/// Sends the frame back to where it came from.
#[inline(always)]
pub fn swap_macs<P: Packet>(packet: &P) -> Result<(), DropReason> {
    if P::L2_LEN == 0 {
        return Ok(());
    }
    let macs = packet.read::<Macs>(0).ok_or(DropReason::RewriteFailed)?;
    packet.write(0, &Macs { dst: macs.src, src: macs.dst })
}

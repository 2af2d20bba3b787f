//! ICMP and ICMPv6: echo to a ClusterIP, and errors about translated packets.

use proxy_common::{
    DropReason,
    maps::conntrack::{EGRESS, INGRESS, Role},
    packet::Transport,
};

use super::{Family, Verdict};
use crate::{
    packet::Packet,
    stage::{
        echo, encap,
        icmp_error::{self, Error},
        output::{self, How, Output},
    },
};

/// ICMP enters the host's stack.
#[inline(always)]
pub fn ingress<P: Packet, A: Family>(packet: &P) -> Verdict {
    let Some(icmp) = A::transport(packet).filter(|t| !t.is_fragment()) else {
        return Output::CONTINUE.into();
    };
    if echo::answer(packet, &icmp) {
        return Output::by(How::Transmit, packet.ifindex()).into();
    }
    match icmp_error::find(packet, &icmp, INGRESS) {
        Some(error) if error.entry.role == Role::DSR.0 => {
            // The node that sent what it quotes knows what to make of it.
            encap::send(packet, &icmp, &error.entry.dst).map_err(|refusal| refusal.reason).into()
        }
        Some(error) => enter(packet, &icmp, &error).into(),
        None => Output::CONTINUE.into(),
    }
}

/// ICMP leaves the host's stack.
#[inline(always)]
pub fn egress<P: Packet, A: Family>(packet: &P) -> Verdict {
    let Some(icmp) = A::transport(packet).filter(|t| !t.is_fragment()) else {
        return Output::CONTINUE.into();
    };
    if packet.ingress_ifindex() == 0 && echo::answer(packet, &icmp) {
        return Output::by(How::Receive, packet.ifindex()).into();
    }
    match icmp_error::find(packet, &icmp, EGRESS) {
        Some(error) => leave(packet, &icmp, &error).into(),
        None => Output::CONTINUE.into(),
    }
}

/// An error about a packet of a connection takes the way of the replies.
#[inline(always)]
fn enter<P: Packet, A: Family>(
    packet: &P,
    icmp: &Transport<A>,
    error: &Error<A>,
) -> Result<Output, DropReason> {
    let (to_host, ifindex) = (error.entry.role == Role::REV_HOST.0, error.entry.ifindex);
    icmp_error::rewrite(packet, icmp, error)?;
    if !to_host {
        return Ok(Output::CONTINUE);
    }
    output::address_to(packet, ifindex)?;
    Ok(Output::by(How::Receive, ifindex))
}

#[inline(always)]
fn leave<P: Packet, A: Family>(
    packet: &P,
    icmp: &Transport<A>,
    error: &Error<A>,
) -> Result<Output, DropReason> {
    if error.entry.role != Role::HOST.0 {
        icmp_error::rewrite(packet, icmp, error)?;
        return Ok(Output::CONTINUE);
    }
    let out = output::route(packet, &error.envelope(icmp))?;
    icmp_error::rewrite(packet, icmp, error)?;
    output::send_by(packet, out)
}

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
        lookup,
        output::{How, Output},
        passage,
    },
};

/// ICMP enters the host's stack.
#[inline(always)]
pub fn ingress<P: Packet, A: Family>(packet: &P) -> Verdict {
    let Some(icmp) = A::transport(packet) else { return Output::CONTINUE.into() };
    to_a_service(packet, &icmp, How::Transmit).unwrap_or_else(|| pass(packet, &icmp, INGRESS))
}

/// ICMP leaves the host's stack.
#[inline(always)]
pub fn egress<P: Packet, A: Family>(packet: &P) -> Verdict {
    let Some(icmp) = A::transport(packet) else { return Output::CONTINUE.into() };
    // What others have sent has been looked at where it entered.
    if packet.ingress_ifindex() == 0
        && let Some(verdict) = to_a_service(packet, &icmp, How::Receive)
    {
        return verdict;
    }
    pass(packet, &icmp, EGRESS)
}

/// What nobody has is dropped, and an echo request answered if it is to a service. Nothing of anything else, which may
/// be an error. An answer goes by `how`.
#[inline(always)]
fn to_a_service<P: Packet, A: Family>(packet: &P, icmp: &Transport<A>, how: How) -> Option<Verdict> {
    let dst = lookup::address(&icmp.dst);
    if dst.is_unallocated() {
        return Some(Verdict::from(Err(DropReason::UnallocatedAddress)));
    }
    let request = echo::request(packet, icmp)?;
    let is_answered = dst.is_a_services() && echo::answer(packet, icmp, request);
    let output = if is_answered { Output::by(how, packet.ifindex()) } else { Output::CONTINUE };
    Some(output.into())
}

/// An error about a packet of a connection takes the way of the replies. Anything else goes on as it came.
#[inline(always)]
fn pass<P: Packet, A: Family>(packet: &P, icmp: &Transport<A>, hook: u8) -> Verdict {
    if icmp.is_fragment() {
        return Output::CONTINUE.into();
    }
    let Some(error) = icmp_error::find(packet, icmp, hook) else { return Output::CONTINUE.into() };
    if hook == INGRESS && error.entry.role == Role::DSR.0 {
        // The node that sent what it quotes knows what to make of it.
        return encap::send(packet, icmp, &error.entry.dst).map_err(|refusal| refusal.reason).into();
    }
    translate(packet, icmp, &error, hook).into()
}

#[inline(always)]
fn translate<P: Packet, A: Family>(
    packet: &P,
    icmp: &Transport<A>,
    error: &Error<A>,
    hook: u8,
) -> Result<Output, DropReason> {
    let (fate, ifindex) = passage::way(packet, error.entry, &error.envelope(icmp), hook)?;
    icmp_error::rewrite(packet, icmp, error)?;
    passage::send(packet, fate, ifindex, hook)
}

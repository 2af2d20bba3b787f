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
        output::{How, Output},
        passage,
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
    pass(packet, &icmp, INGRESS)
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
    pass(packet, &icmp, EGRESS)
}

/// An error about a packet of a connection takes the way of the replies. Anything else goes on as it came.
#[inline(always)]
fn pass<P: Packet, A: Family>(packet: &P, icmp: &Transport<A>, hook: u8) -> Verdict {
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

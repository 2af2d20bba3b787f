//! ICMP and ICMPv6.

use super::{Family, Verdict};
use crate::{
    packet::Packet,
    stage::{
        echo,
        output::{How, Output},
    },
};

/// ICMP enters the host's stack.
#[inline(always)]
pub fn ingress<P: Packet, A: Family>(packet: &P) -> Verdict {
    let Some(transport) = A::transport(packet).filter(|t| !t.is_fragment()) else {
        return Output::CONTINUE.into();
    };
    let back = Output::by(How::Transmit, packet.ifindex());
    if echo::answer(packet, &transport) { back } else { Output::CONTINUE }.into()
}

/// ICMP leaves the host's stack.
#[inline(always)]
pub fn egress<P: Packet, A: Family>(packet: &P) -> Verdict {
    let Some(transport) = A::transport(packet).filter(|t| !t.is_fragment()) else {
        return Output::CONTINUE.into();
    };
    let back = Output::by(How::Receive, packet.ifindex());
    let answered = packet.ingress_ifindex() == 0 && echo::answer(packet, &transport);
    if answered { back } else { Output::CONTINUE }.into()
}

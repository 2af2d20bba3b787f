//! Packets that are refused: their senders are told, or not.

use proxy_common::{
    DropReason,
    maps::{events::Hook, tails::Tail},
    packet::Parsed,
};

use super::{Family, Verdict, parse_again};
use crate::{
    maps,
    packet::{Buffer, Packet},
    stage::{
        conntrack::Arrival,
        output::{How, Output},
        reject,
        select::Refusal,
        trace, transient,
    },
};

/// Such a packet enters the host's stack.
#[inline(always)]
pub fn ingress<P: Buffer, A: Family>(packet: &P) -> Verdict {
    by_hook::<P, A>(packet, P::ENTRY, How::Transmit)
}

/// Such a packet leaves the host's stack.
#[inline(always)]
pub fn egress<P: Buffer, A: Family>(packet: &P) -> Verdict {
    by_hook::<P, A>(packet, Hook::EGRESS, How::Receive)
}

/// Leaves the packet to one of these programs, which answers by where it came from.
#[inline(always)]
pub fn go_on<P: Packet, A: Family>(packet: &P, refusal: Refusal, tail: Tail) -> Verdict {
    let (reason, service) = (refusal.reason, refusal.service);
    maps::put_refusal::<A>(refusal);
    maps::tail_call(packet, tail);
    Verdict { output: Output::DROP, refused: Some(reason), service }
}

#[inline(always)]
fn by_hook<P: Buffer, A: Family>(packet: &P, hook: Hook, back: How) -> Verdict {
    let Some(refusal) = maps::refusal::<A>() else {
        return Err(DropReason::InvalidMapState).into();
    };
    let service = refusal.service;
    let silent = Verdict { output: Output::DROP, refused: Some(refusal.reason), service };
    let Some(parsed) = parse_again::<P, A>(packet) else {
        return silent;
    };
    trace::refused(&Arrival::uncounted(packet, hook), &parsed.tuple, service, refusal.reason);
    if refusal.reason == DropReason::ConntrackFull {
        transient::make_room::<A>(parsed.tuple.proto);
    }
    if !refusal.reject {
        return silent;
    }
    if !reject::within_budget() {
        return Verdict { refused: Some(DropReason::RejectRateLimited), ..silent };
    }
    if answer(packet, parsed, refusal) {
        return Verdict { output: Output::by(back, packet.ifindex()), ..silent };
    }
    silent
}

#[inline(always)]
fn answer<P: Buffer, A: Family>(packet: &P, parsed: &Parsed<A>, refusal: &Refusal) -> bool {
    let answered = if refusal.mtu == 0 {
        reject::reject(packet, parsed)
    } else {
        reject::too_big(packet, parsed, refusal.mtu)
    };
    answered.unwrap_or(false)
}

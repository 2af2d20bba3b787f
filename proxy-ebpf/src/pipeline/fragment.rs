//! Fragments of IPv4 and IPv6 packets.

use proxy_common::{
    DropReason, Tuple,
    maps::{
        conntrack::{CtKey, EGRESS, INGRESS},
        fragments::{Fate, FragmentKey, FragmentRow},
        tails::Tail,
    },
    packet::{Parsed, Transport},
    proto,
};

use super::{Family, Verdict, refuse};
use crate::{
    maps,
    packet::Buffer,
    stage::{
        encap,
        fragments::{self, Early},
        output::Output,
        passage::{self, Passage},
        select::Refusal,
    },
};

/// A fragment enters the host's stack.
#[inline(always)]
pub fn ingress<P: Buffer, A: Family>(packet: &P) -> Verdict {
    by_place::<P, A>(packet, INGRESS)
}

/// A fragment leaves the host's stack.
#[inline(always)]
pub fn egress<P: Buffer, A: Family>(packet: &P) -> Verdict {
    by_place::<P, A>(packet, EGRESS)
}

#[inline(always)]
fn by_place<P: Buffer, A: Family>(packet: &P, hook: u8) -> Verdict {
    let Some(fragment) = A::transport(packet).filter(|t| t.is_fragment()) else {
        return Output::CONTINUE.into();
    };
    if fragment.fragment_offset != 0 {
        return later(packet, fragment, hook);
    }
    match super::parsed(packet, fragment) {
        Some(parsed) => {
            let tail = if hook == INGRESS { Tail::InRefuse } else { Tail::OutRefuse };
            match first(packet, parsed, hook) {
                Ok(output) => output.into(),
                Err(refusal) => refuse::go_on::<P, A>(packet, refusal, tail),
            }
        }
        None => not_ours(packet, fragment, hook),
    }
}

/// The first fragment has ports: what becomes of it is what becomes of the packet. The program
/// before this one has opened the connection, if it is one.
#[inline(always)]
fn first<P: Buffer, A: Family>(packet: &P, parsed: &Parsed<A>, hook: u8) -> Result<Output, Refusal> {
    let passage = match maps::other_row(&CtKey::new(&parsed.tuple, hook)) {
        Some(row) => Passage::by(packet, row, parsed.tuple.proto, hook)?,
        None => Passage { fate: Fate::PASS, target: parsed.tuple, ifindex: 0 },
    };
    let Passage { fate, ref target, ifindex } = passage;
    let key = FragmentKey::new(&parsed.transport, hook);
    if fragments::note(&key, target, fate, ifindex) {
        fragments::release(packet, &key);
        return Ok(Output::DROP);
    }
    let same_ports = parsed.tuple.sport == target.sport && parsed.tuple.dport == target.dport;
    let is_rewritten = fate != Fate::PASS && fate != Fate::ENCAPSULATE;
    if parsed.tuple.proto == proto::SCTP && is_rewritten && !same_ports {
        return Err(DropReason::FragmentedSctp.into());
    }
    passage.take(packet, parsed, hook)
}

/// A first fragment without ports of a protocol we translate.
#[inline(always)]
fn not_ours<P: Buffer, A: Family>(packet: &P, fragment: Transport<A>, hook: u8) -> Verdict {
    let key = FragmentKey::new(&fragment, hook);
    let same = Tuple { src: fragment.src, dst: fragment.dst, ..Tuple::default() };
    if fragments::note(&key, &same, Fate::PASS, 0) {
        fragments::release(packet, &key);
        return Output::DROP.into();
    }
    Output::CONTINUE.into()
}

/// Any other fragment does as the first did.
#[inline(always)]
fn later<P: Buffer, A: Family>(packet: &P, fragment: Transport<A>, hook: u8) -> Verdict {
    let key = FragmentKey::new(&fragment, hook);
    if fragments::is_unknown(&key) {
        match fragments::hold(packet, &fragment, &key) {
            Early::Pass => return Output::CONTINUE.into(),
            Early::Held => return Output::DROP.into(),
            Early::Lost => {
                return Verdict {
                    output: Output::CONTINUE,
                    refused: Some(DropReason::FragmentNotHeld),
                    service: 0,
                };
            }
            Early::Known => {}
        }
    }
    let Some(row) = fragments::find(&key) else { return Output::CONTINUE.into() };
    follow(packet, fragment, row, hook).into()
}

#[inline(always)]
fn follow<P: Buffer, A: Family>(
    packet: &P,
    fragment: Transport<A>,
    row: &FragmentRow<A>,
    hook: u8,
) -> Result<Output, DropReason> {
    let (fate, ifindex) = (Fate(row.fate), row.ifindex);
    if fate == Fate::PASS || fate == Fate::WAIT {
        return Ok(Output::CONTINUE);
    }
    let tuple = Tuple { src: fragment.src, dst: fragment.dst, sport: 0, dport: 0, proto: fragment.proto };
    let target = Tuple { src: row.src, dst: row.dst, ..tuple };
    if fate == Fate::ENCAPSULATE {
        return encap::send(packet, &fragment, &row.dst).map_err(|refusal| refusal.reason);
    }
    fragments::rewrite(packet, &tuple, &target)?;
    passage::send(packet, fate, ifindex, hook)
}

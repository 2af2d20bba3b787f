//! Packets between a client and a backend itself, which are translated only if they would meet the
//! rows of another connection.

use proxy_common::{
    DropReason,
    maps::{
        conntrack::{EGRESS, INGRESS},
        events::Hook,
        tails::Tail,
    },
    packet::Parsed,
};

use super::{Family, Verdict, leave_alone, parse_again};
use crate::{
    maps,
    packet::Packet,
    stage::{conntrack::Arrival, direct, nat, output::Output, over, retire},
};

/// Such a packet enters the host's stack.
#[inline(always)]
pub fn ingress<P: Packet, A: Family>(packet: &P) -> Verdict {
    by_hook::<P, A>(packet, INGRESS, P::ENTRY, Tail::InFragment)
}

/// Such a packet leaves the host's stack.
#[inline(always)]
pub fn egress<P: Packet, A: Family>(packet: &P) -> Verdict {
    by_hook::<P, A>(packet, EGRESS, Hook::EGRESS, Tail::OutFragment)
}

#[inline(always)]
fn by_hook<P: Packet, A: Family>(packet: &P, hook: u8, at: Hook, fragments: Tail) -> Verdict {
    let Some(parsed) = parse_again::<P, A>(packet) else {
        return Output::CONTINUE.into();
    };
    let arrival = Arrival::at(packet, at);
    if let Err(reason) = translate(packet, &arrival, parsed, hook) {
        return Err(reason).into();
    }
    // A first fragment is translated there, by the row that it has now, and says what becomes of the others.
    leave_alone(packet, parsed, fragments).into()
}

#[inline(always)]
fn translate<P: Packet, A: Family>(
    packet: &P,
    arrival: &Arrival,
    parsed: &Parsed<A>,
    hook: u8,
) -> Result<(), DropReason> {
    let key = maps::new_key().ok_or(DropReason::InvalidMapState)?;
    key.set(&parsed.tuple, hook);
    if let Some(entry) = maps::found_row(key) {
        if direct::meets_another(entry, parsed, hook, key) {
            direct::release(entry, &parsed.tuple, hook, parsed.tcp_flags, key);
            return Ok(());
        }
        if !over::is_over(entry, parsed, key) {
            return Ok(());
        }
        key.set(&parsed.tuple, hook);
        retire::retire(key);
    }
    match direct::open(packet, arrival, parsed, hook)? {
        Some(target) if !parsed.transport.is_fragment() => nat::rewrite(packet, parsed, &target),
        _ => Ok(()),
    }
}

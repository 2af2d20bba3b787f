//! Packets whose connection has lost rows, or may have: what can be found again is put back, and the
//! packet begins anew.

use proxy_common::{
    maps::{
        conntrack::{EGRESS, INGRESS},
        tails::Tail,
    },
    packet::Parsed,
};

use super::{Family, Verdict, go_on_in, parse_again};
use crate::{
    maps,
    packet::Packet,
    stage::{lost, output::Output, over, retire::retire_all, search},
};

/// Such a packet enters the host's stack.
#[inline(always)]
pub fn ingress<P: Packet, A: Family>(packet: &P) -> Verdict {
    by_hook::<P, A>(packet, INGRESS, Tail::In, Tail::InOpen)
}

/// Such a packet leaves the host's stack.
#[inline(always)]
pub fn egress<P: Packet, A: Family>(packet: &P) -> Verdict {
    by_hook::<P, A>(packet, EGRESS, Tail::Out, Tail::OutOpen)
}

#[inline(always)]
fn by_hook<P: Packet, A: Family>(packet: &P, hook: u8, again: Tail, open: Tail) -> Verdict {
    let Some(parsed) = parse_again::<P, A>(packet) else {
        return Output::CONTINUE.into();
    };
    let is_known = restore(parsed, hook) || search::search(packet, parsed, hook);
    go_on_in(packet, if is_known { again } else { open })
}

/// False if there is no row for the packet.
#[inline(always)]
fn restore<A: Family>(parsed: &Parsed<A>, hook: u8) -> bool {
    let (Some(key), Some(entry)) = (maps::new_key(), maps::found()) else { return false };
    key.set(&parsed.tuple, hook);
    let Some(row) = maps::conntrack_apart(key, entry) else { return false };
    if over::answers_another(entry, parsed, key) {
        key.set(&parsed.tuple, hook);
        retire_all::<A>();
    } else {
        lost::restore(row, entry, &parsed.tuple, hook, key);
    }
    true
}

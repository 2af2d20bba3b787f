//! Packets that may end their connection: that is noted, and the packet begins anew.

use proxy_common::maps::{
    conntrack::{EGRESS, INGRESS},
    tails::Tail,
};

use super::{Family, Verdict, go_on_in, parse_again};
use crate::{
    packet::Packet,
    stage::{output::Output, transient},
};

/// Such a packet enters the host's stack.
#[inline(always)]
pub fn ingress<P: Packet, A: Family>(packet: &P) -> Verdict {
    by_hook::<P, A>(packet, INGRESS, Tail::In)
}

/// Such a packet leaves the host's stack.
#[inline(always)]
pub fn egress<P: Packet, A: Family>(packet: &P) -> Verdict {
    by_hook::<P, A>(packet, EGRESS, Tail::Out)
}

#[inline(always)]
fn by_hook<P: Packet, A: Family>(packet: &P, hook: u8, again: Tail) -> Verdict {
    let Some(parsed) = parse_again::<P, A>(packet) else { return Output::CONTINUE.into() };
    transient::note_end(&parsed.tuple, parsed.tcp_flags, hook);
    go_on_in(packet, again)
}

//! The stages in their order, for each direction of the host's stack.
//!
//! The stack itself (routing, firewall, its own connection tracking) stands between the
//! two and sees client and backend only: destinations are rewritten before it, sources
//! after it. Under XDP both steps are one, in `driver`.
//!
//! What becomes of a packet has four names: its [`Fate`](proxy_common::maps::fragments::Fate) is the kind of it, which
//! follows from the row it matches; its [`Passage`] says with that which tuple it gets; the [`Output`] is how it then
//! leaves the program, and the [`Verdict`] tells besides what was refused.

pub mod direct;
pub mod driver;
pub mod dsr;
pub mod end;
pub mod fragment;
pub mod icmp;
pub mod lost;
pub mod open;
pub mod refuse;

use proxy_common::{
    DropReason,
    maps::{
        conntrack::{CtEntry, EGRESS, INGRESS, flags},
        events::Hook,
        tails::Tail,
    },
    packet::{Bytes, Parsed, Transport, parse_into},
};

use crate::{
    maps,
    packet::{Buffer, Packet},
    stage::{
        classify::PodRange,
        conntrack::{self, Arrival},
        lookup::{Ports, may_enter, may_leave},
        network::Network,
        output::Output,
        passage::Passage,
        select::Refusal,
    },
};

/// An address family with everything the stages ask of it.
pub trait Family: Network + PodRange {}
impl<A: Network + PodRange> Family for A {}

/// What becomes of a packet.
pub struct Verdict {
    pub output: Output,
    /// It was refused, and why; if it goes on all the same, it is the answer to its sender.
    pub refused: Option<DropReason>,
    /// The service that was asked for in vain, 0 if none is known.
    pub service: u32,
}

impl From<Output> for Verdict {
    #[inline(always)]
    fn from(output: Output) -> Self {
        Self { output, refused: None, service: 0 }
    }
}

/// What could not be done is met with silence.
impl From<Result<Output, DropReason>> for Verdict {
    #[inline(always)]
    fn from(result: Result<Output, DropReason>) -> Self {
        match result {
            Ok(output) => output.into(),
            Err(reason) => Self { output: Output::DROP, refused: Some(reason), service: 0 },
        }
    }
}

/// A packet enters the host's stack.
#[inline(always)]
pub fn ingress<P: Buffer, A: Family>(packet: &P) -> Verdict {
    let Some(transport) = A::transport(packet) else { return Output::CONTINUE.into() };
    if transport.fragment_offset != 0 {
        return go_on_in(packet, Tail::InFragment);
    }
    if transport.proto == A::ICMP {
        return go_on_in(packet, Tail::InIcmp);
    }
    if transport.proto == A::ENCAPSULATED {
        return go_on_in(packet, Tail::InDsr);
    }
    let ports = may_enter(&transport);
    if ports.is_none() {
        return Output::CONTINUE.into();
    }
    let Some(parsed) = parsed(packet, transport) else {
        return if transport.is_fragment() {
            go_on_in(packet, Tail::InFragment)
        } else {
            Output::CONTINUE.into()
        };
    };
    if !ports.include(parsed) {
        return Output::CONTINUE.into();
    }
    if ports.are_direct() {
        return go_on_in(packet, Tail::InDirect);
    }
    match enter(packet, parsed, ports) {
        Ok(output) => output.into(),
        Err(refusal) => refuse::go_on::<P, A>(packet, refusal, Tail::InRefuse),
    }
}

/// A packet leaves the host's stack.
#[inline(always)]
pub fn egress<P: Buffer, A: Family>(packet: &P) -> Verdict {
    let Some(transport) = A::transport(packet) else { return Output::CONTINUE.into() };
    if transport.fragment_offset != 0 {
        return go_on_in(packet, Tail::OutFragment);
    }
    if transport.proto == A::ICMP {
        return go_on_in(packet, Tail::OutIcmp);
    }
    let ports = may_leave(&transport, packet.ingress_ifindex() == 0);
    if ports.is_none() {
        return Output::CONTINUE.into();
    }
    let Some(parsed) = parsed(packet, transport) else {
        return if transport.is_fragment() {
            go_on_in(packet, Tail::OutFragment)
        } else {
            Output::CONTINUE.into()
        };
    };
    if !ports.include(parsed) {
        return Output::CONTINUE.into();
    }
    if ports.are_direct() {
        return go_on_in(packet, Tail::OutDirect);
    }
    match leave(packet, parsed, ports) {
        Ok(output) => output.into(),
        Err(refusal) => refuse::go_on::<P, A>(packet, refusal, Tail::OutRefuse),
    }
}

/// Leaves the packet to another program. If that is missing, the packet goes on as it came.
#[inline(always)]
fn go_on_in<P: Packet>(packet: &P, tail: Tail) -> Verdict {
    maps::tail_call(packet, tail);
    Output::CONTINUE.into()
}

/// ① reply to one of our masqueraded connections, ② packet to a frontend.
#[inline(always)]
fn enter<P: Packet, A: Family>(packet: &P, parsed: &Parsed<A>, ports: Ports) -> Result<Output, Refusal> {
    let found = conntrack::find::<P, A>(packet, &Arrival::at(packet, P::ENTRY), INGRESS);
    let Ok(found) = found else { return Ok(Output::CONTINUE) };
    let Some(row) = found else {
        if open::is_wanted(parsed, ports.include_frontend(parsed)) {
            let next = if parsed.opens() { Tail::InOpen } else { Tail::InLost };
            return Ok(go_on_in(packet, next).output);
        }
        return Ok(go_on_beside(packet, parsed, ports, Tail::InDirect, Tail::InFragment));
    };
    pass(packet, parsed, row, INGRESS, Tail::InFragment)
}

/// ③ masquerade, ④ reply of a translated connection, ⑤ packet of a host process that the
/// socket hooks did not translate.
#[inline(always)]
fn leave<P: Packet, A: Family>(packet: &P, parsed: &Parsed<A>, ports: Ports) -> Result<Output, Refusal> {
    let found = conntrack::find::<P, A>(packet, &Arrival::at(packet, Hook::EGRESS), EGRESS);
    let Ok(found) = found else { return Ok(Output::CONTINUE) };
    let Some(row) = found else {
        if open::is_wanted(parsed, packet.ingress_ifindex() == 0 && ports.include_frontend(parsed)) {
            let next = if parsed.opens() { Tail::OutOpen } else { Tail::OutLost };
            return Ok(go_on_in(packet, next).output);
        }
        return Ok(go_on_beside(packet, parsed, ports, Tail::OutDirect, Tail::OutFragment));
    };
    if row.flags & flags::SNAT_PENDING != 0 {
        return Ok(go_on_in(packet, Tail::OutOpen).output);
    }
    pass(packet, parsed, row, EGRESS, Tail::OutFragment)
}

/// A packet goes on as its connection has it. If it is a first fragment, another program notes that for the others.
#[inline(always)]
fn pass<P: Packet, A: Family>(
    packet: &P,
    parsed: &Parsed<A>,
    row: &CtEntry<A>,
    hook: u8,
    fragments: Tail,
) -> Result<Output, Refusal> {
    if parsed.transport.is_fragment() {
        return Ok(go_on_in(packet, fragments).output);
    }
    Passage::by(packet, row, parsed.tuple.proto, hook)?.take(packet, parsed, hook)
}

/// A packet that is neither to a frontend nor of a connection that has rows.
#[inline(always)]
fn go_on_beside<P: Packet, A: Family>(
    packet: &P,
    parsed: &Parsed<A>,
    ports: Ports,
    direct: Tail,
    fragments: Tail,
) -> Output {
    if ports.include_direct(parsed) {
        return go_on_in(packet, direct).output;
    }
    leave_alone(packet, parsed, fragments)
}

/// A packet goes on as it came. If it is a first fragment, another program notes that for the others.
#[inline(always)]
fn leave_alone<P: Packet, A: Family>(packet: &P, parsed: &Parsed<A>, fragments: Tail) -> Output {
    if parsed.transport.is_fragment() { go_on_in(packet, fragments).output } else { Output::CONTINUE }
}

/// What a packet says, in the room of this CPU. Of what lies on the stack the verifier knows on which way it came to
/// be, and it walks all that follows once for each; of what is in a map it knows nothing.
#[inline(always)]
fn parsed<P: Bytes, A: Family>(packet: &P, transport: Transport<A>) -> Option<&'static Parsed<A>> {
    let room = maps::parsed()?;
    parse_into(packet, &transport, room)?;
    maps::read_anew();
    Some(room)
}

/// A packet that another program has parsed before.
#[inline(always)]
fn parse_again<P: Packet, A: Family>(packet: &P) -> Option<&'static Parsed<A>> {
    parsed(packet, A::transport(packet)?)
}

//! The stages in their order, for each direction of the host's stack.
//!
//! The stack itself (routing, firewall, its own connection tracking) stands between the
//! two and sees client and backend only: destinations are rewritten before it, sources
//! after it.

use proxy_common::{
    DropReason, Tuple,
    maps::{
        conntrack::{CtKey, EGRESS, INGRESS, Role, flags},
        frontends::{ClientClass, Frontend},
    },
};

use crate::{
    maps,
    packet::Packet,
    stage::{
        classify::{self, PodRange},
        conntrack,
        lookup::{Lookup, lookup},
        nat,
        network::Network,
        output::{self, Output},
        parse::{Parsed, parse},
        reject,
        select::{Refusal, select},
        snat::{self, SnatAddress},
    },
};

/// An address family with everything the stages ask of it.
pub trait Family: Network + PodRange + SnatAddress {}
impl<A: Network + PodRange + SnatAddress> Family for A {}

/// What becomes of a packet.
pub enum Verdict {
    /// It goes on, rewritten or not.
    Output(Output),
    /// Nobody hears of it again.
    Drop(DropReason),
    /// It has been turned into a refusal, which goes this way.
    Rejected(DropReason, Output),
}

const CONTINUE: Verdict = Verdict::Output(Output::Continue);

/// How a stage that did not hand the packet on ended.
enum Stop {
    Drop(DropReason),
    Reject(DropReason),
}

impl From<DropReason> for Stop {
    #[inline(always)]
    fn from(reason: DropReason) -> Self {
        Stop::Drop(reason)
    }
}

impl From<Refusal> for Stop {
    #[inline(always)]
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Reject(reason) => Stop::Reject(reason),
            Refusal::Drop(reason) => Stop::Drop(reason),
        }
    }
}

/// A packet enters the host's stack.
#[inline(always)]
pub fn ingress<P: Packet, A: Family>(packet: &P) -> Verdict {
    let Some(parsed) = parse::<P, A>(packet) else { return CONTINUE };
    match enter(packet, &parsed) {
        Ok(output) => Verdict::Output(output),
        Err(Stop::Drop(reason)) => Verdict::Drop(reason),
        Err(Stop::Reject(reason)) => refuse(packet, &parsed, reason, Output::Transmit(packet.ifindex())),
    }
}

/// A packet leaves the host's stack.
#[inline(always)]
pub fn egress<P: Packet, A: Family>(packet: &P) -> Verdict {
    let Some(parsed) = parse::<P, A>(packet) else { return CONTINUE };
    match leave(packet, &parsed) {
        Ok(output) => Verdict::Output(output),
        Err(Stop::Drop(reason)) => Verdict::Drop(reason),
        Err(Stop::Reject(reason)) => refuse(packet, &parsed, reason, Output::Receive(packet.ifindex())),
    }
}

#[inline(always)]
fn refuse<P: Packet, A: Family>(packet: &P, parsed: &Parsed<A>, reason: DropReason, back: Output) -> Verdict {
    match reject::reject(packet, parsed) {
        Ok(true) => Verdict::Rejected(reason, back),
        Ok(false) | Err(_) => Verdict::Drop(reason),
    }
}

/// ① reply to one of our masqueraded connections, ② packet to a frontend.
#[inline(always)]
fn enter<P: Packet, A: Family>(packet: &P, parsed: &Parsed<A>) -> Result<Output, Stop> {
    if let Some(entry) = conntrack::find(parsed, INGRESS) {
        let (to_host, ifindex) = (entry.role == Role::REV_HOST.0, entry.ifindex);
        nat::rewrite(packet, parsed, &entry.target(parsed.tuple.proto))?;
        if to_host {
            output::address_to(packet, ifindex)?;
            return Ok(Output::Receive(ifindex));
        }
        return Ok(Output::Continue);
    }
    let Some(frontend) = frontend_of(parsed)? else { return Ok(Output::Continue) };
    let class = classify::classify(&parsed.tuple.src, packet.ifindex());
    let choice = select::<A>(frontend, class)?;
    let target = conntrack::create(parsed, frontend.service, &choice)?;
    nat::rewrite(packet, parsed, &target)?;
    Ok(Output::Continue)
}

/// ③ masquerade, ④ reply of a translated connection, ⑤ packet of a host process that the
/// socket hooks did not translate.
#[inline(always)]
fn leave<P: Packet, A: Family>(packet: &P, parsed: &Parsed<A>) -> Result<Output, Stop> {
    if let Some(entry) = conntrack::find(parsed, EGRESS) {
        let of_host = entry.role == Role::HOST.0;
        let target = if entry.flags & flags::SNAT_PENDING != 0 {
            snat::complete(entry, &parsed.tuple, packet.ifindex())?
        } else {
            entry.target(parsed.tuple.proto)
        };
        if of_host {
            let out = output::route(packet, &target)?;
            return send_from_host(packet, parsed, &target, out);
        }
        nat::rewrite(packet, parsed, &target)?;
        return Ok(Output::Continue);
    }
    if packet.ingress_ifindex() != 0 {
        return Ok(Output::Continue);
    }
    let Some(frontend) = frontend_of(parsed)? else { return Ok(Output::Continue) };
    let (target, out) = connect_from_host(packet, parsed, frontend)?;
    send_from_host(packet, parsed, &target, out)
}

#[inline(always)]
fn frontend_of<A: Family>(parsed: &Parsed<A>) -> Result<Option<&'static Frontend>, Stop> {
    match lookup(parsed.tuple.dst, parsed.tuple.dport, parsed.tuple.proto) {
        Lookup::Frontend(frontend) => Ok(Some(frontend)),
        Lookup::Reject(reason) => Err(Stop::Reject(reason)),
        Lookup::Drop(reason) => Err(Stop::Drop(reason)),
        Lookup::None => Ok(None),
    }
}

/// Enters the two rows of a host process's connection; returns the tuple of its packets
/// and the interface they leave by.
#[inline(always)]
fn connect_from_host<P: Packet, A: Family>(
    packet: &P,
    parsed: &Parsed<A>,
    frontend: &Frontend,
) -> Result<(Tuple<A>, u32), Stop> {
    let choice = select::<A>(frontend, ClientClass::Node)?;
    let original = &parsed.tuple;
    let mut target = Tuple { dst: choice.backend.addr, dport: choice.backend.port, ..*original };
    let out = output::route(packet, &target)?;
    let reply_to = original.reversed();
    // One row for both directions in turn: the stack has room for 512 bytes.
    let mut row = conntrack::row(frontend.service, choice.id, &reply_to, Role::REV_HOST, flags::SNAT);
    row.ifindex = packet.ifindex();
    target.src = snat::address::<A>(out)?;
    snat::claim(&mut target, &row)?;
    row.set_target(&target);
    row.role = Role::HOST.0;
    row.tcp_flags = parsed.tcp_flags;
    maps::conntrack_put(&CtKey::new(original, EGRESS), &row)?;
    Ok((target, out))
}

/// Rewrites a host process's packet and sends it by the backend's route.
#[inline(always)]
fn send_from_host<P: Packet, A: Family>(
    packet: &P,
    parsed: &Parsed<A>,
    target: &Tuple<A>,
    out: u32,
) -> Result<Output, Stop> {
    nat::rewrite(packet, parsed, target)?;
    if out == output::LOOPBACK {
        output::address_to(packet, out)?;
        return Ok(Output::Receive(out));
    }
    Ok(Output::Neighbour(out))
}

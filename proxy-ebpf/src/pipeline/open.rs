//! Packets that no row is for, and first packets of connections that are masqueraded as they leave. What
//! opens a connection gets its rows here, and begins anew.

use proxy_common::{
    DropReason, Tuple,
    maps::{
        address_filter::flags::DIRECT,
        conntrack::{CtEntry, EGRESS, INGRESS, Role, flags},
        events::{self, Hook},
        frontends::{ClientClass, Frontend, flags::SOURCE_RANGES},
        tails::Tail,
    },
    packet::Parsed,
};

use super::{Family, Verdict, go_on_in, leave_alone, parse_again, refuse};
use crate::{
    maps,
    packet::Packet,
    stage::{
        affinity::settle_packet,
        classify,
        conntrack::{self, Arrival},
        create::{self, Owner},
        direct,
        lookup::{frontend_of_packet, is_ours},
        output::{self, Output},
        ports,
        select::{Refusal, candidates, draw, select},
        snat,
        stray::{self, Stray},
        takeover, trace, transient,
    },
};

/// Such a packet enters the host's stack.
#[inline(always)]
pub fn ingress<P: Packet, A: Family>(packet: &P) -> Verdict {
    by_hook::<P, A>(packet, INGRESS)
}

/// Such a packet leaves the host's stack.
#[inline(always)]
pub fn egress<P: Packet, A: Family>(packet: &P) -> Verdict {
    by_hook::<P, A>(packet, EGRESS)
}

#[inline(always)]
fn by_hook<P: Packet, A: Family>(packet: &P, hook: u8) -> Verdict {
    let Some(parsed) = parse_again::<P, A>(packet) else { return Output::CONTINUE.into() };
    let (result, refused) = if hook == INGRESS {
        (enter(packet, parsed), Tail::InRefuse)
    } else {
        (leave(packet, parsed), Tail::OutRefuse)
    };
    match result {
        Ok(output) => output.into(),
        Err(refusal) => refuse::go_on::<P, A>(packet, refusal, refused),
    }
}

/// True for a packet that no row is for, and that may have come to a frontend, or had rows: to a backend
/// itself, by another port.
#[inline(always)]
pub fn is_wanted<A: Family>(parsed: &Parsed<A>, to_frontend: bool) -> bool {
    let Tuple { src, dst, dport, proto, .. } = parsed.tuple;
    to_frontend && is_ours(dst, dport, proto) || !parsed.opens() && maps::address_bits(&src) & DIRECT != 0
}

#[inline(always)]
fn enter<P: Packet, A: Family>(packet: &P, parsed: &Parsed<A>) -> Result<Output, Refusal> {
    let alone = || Ok(leave_alone(packet, parsed, Tail::InFragment));
    if takeover::is_netfilters(parsed) {
        return alone();
    }
    // Before anything else needs room on the stack.
    let hash = ports::hash(&parsed.tuple);
    let Some(frontend) = frontend_of_packet::<A>()? else { return alone() };
    let stray = stray::judge(parsed, frontend);
    if stray == Stray::Reply {
        direct::note(&parsed.tuple, INGRESS);
    }
    if stray == Stray::GoesOn || stray == Stray::Reply {
        return alone();
    }
    connect(&Arrival::uncounted(packet, P::ENTRY), parsed, frontend, stray, hash)?;
    Ok(go_on_in(packet, Tail::In).output)
}

/// Opens a connection to a frontend; returns the row of its packets. `hash` is that of the packet's tuple.
#[inline(always)]
pub fn connect<A: Family>(
    arrival: &Arrival,
    parsed: &Parsed<A>,
    frontend: &Frontend,
    stray: Stray,
    hash: u32,
) -> Result<&'static CtEntry<A>, Refusal> {
    admit(arrival, parsed, frontend, stray, hash).map_err(|refusal| refusal.of(frontend.service))
}

#[inline(always)]
fn admit<A: Family>(
    arrival: &Arrival,
    parsed: &Parsed<A>,
    frontend: &Frontend,
    stray: Stray,
    hash: u32,
) -> Result<&'static CtEntry<A>, Refusal> {
    let client = parsed.tuple.src;
    if frontend.flags & SOURCE_RANGES != 0 && !maps::in_source_ranges(frontend.service, &client) {
        return Err(DropReason::SourceNotAllowed.into());
    }
    let class = classify::classify(&client, arrival.ifindex);
    let candidates = candidates(frontend, class)?;
    stray.admit()?;
    let choice = select(frontend, candidates, draw(frontend, &parsed.tuple, hash), settle_packet::<A>)?;
    let (row, marks) = if choice.dsr {
        (create::create_dsr(arrival, parsed, frontend, &choice)?, events::flags::DSR)
    } else {
        let marks = if choice.snat { events::flags::SNAT } else { 0 };
        (create::create(arrival, parsed, frontend, &choice, hash)?, marks)
    };
    trace::opened(arrival, &parsed.tuple, row, marks);
    Ok(row)
}

#[inline(always)]
fn leave<P: Packet, A: Family>(packet: &P, parsed: &Parsed<A>) -> Result<Output, Refusal> {
    let own = &parsed.tuple;
    let key = maps::new_key().ok_or(DropReason::InvalidMapState)?;
    key.set(own, EGRESS);
    let pending = maps::found_row(key).filter(|row| row.flags & flags::SNAT_PENDING != 0);
    let opened = maps::step().ok_or(DropReason::InvalidMapState)?;
    *opened = pending.as_ref().map_or(*own, |row| row.original(own.src, own.proto));
    let hash = ports::hash(opened);
    if let Some(entry) = pending {
        snat::complete(entry, own, packet.ifindex(), hash)?;
        return Ok(go_on_in(packet, Tail::Out).output);
    }
    let frontend = if packet.ingress_ifindex() == 0 { frontend_of_packet::<A>()? } else { None };
    let Some(frontend) = frontend else { return Ok(leave_alone(packet, parsed, Tail::OutFragment)) };
    let stray = stray::judge(parsed, frontend);
    if stray == Stray::GoesOn || stray == Stray::Reply {
        return Ok(leave_alone(packet, parsed, Tail::OutFragment));
    }
    connect_from_host(packet, parsed, frontend, stray, hash)
        .map_err(|refusal| refusal.of(frontend.service))?;
    Ok(go_on_in(packet, Tail::Out).output)
}

/// Enters the two rows of a host process's connection.
#[inline(always)]
fn connect_from_host<P: Packet, A: Family>(
    packet: &P,
    parsed: &Parsed<A>,
    frontend: &Frontend,
    stray: Stray,
    hash: u32,
) -> Result<(), Refusal> {
    let original = &parsed.tuple;
    let candidates = candidates(frontend, ClientClass::Node)?;
    stray.admit()?;
    let choice = select(frontend, candidates, draw(frontend, original, hash), settle_packet::<A>)?;
    let target = maps::step().ok_or(DropReason::InvalidMapState)?;
    *target = Tuple { dst: choice.backend.addr, dport: choice.backend.port, ..*original };
    let out = output::route(packet, target)?;
    let arrival = Arrival::uncounted(packet, Hook::EGRESS);
    let owner = Owner::new(frontend, choice.id);
    let row = create::begin(owner, &original.reversed(), Role::REV_HOST, flags::SNAT)?;
    row.ifindex = packet.ifindex();
    let claimed = ports::claim_behind(target, out, hash)?;
    (target.src, target.sport) = (claimed.dst, claimed.dport);
    row.set_target(target);
    (row.role, row.flags) = (Role::HOST.0, flags::SNAT);
    conntrack::first(&arrival, parsed, row);
    create::enter_first(original, EGRESS, row).inspect_err(|_| create::leave(&target.reversed(), INGRESS))?;
    transient::wait::<A>(original.proto);
    owner.count::<A>();
    trace::opened(&arrival, original, row, events::flags::SNAT);
    Ok(())
}

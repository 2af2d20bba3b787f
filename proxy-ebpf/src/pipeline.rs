//! The stages in their order, for each direction of the host's stack.
//!
//! The stack itself (routing, firewall, its own connection tracking) stands between the
//! two and sees client and backend only: destinations are rewritten before it, sources
//! after it. Under XDP both steps are one, in `driver`.

pub mod direct;
pub mod driver;
pub mod dsr;
pub mod fragment;
pub mod icmp;

use proxy_common::{
    DropReason, Tuple,
    maps::{
        conntrack::{CtKey, EGRESS, INGRESS, Role, flags},
        events::{self, Hook},
        frontends::{ClientClass, Frontend, flags::SOURCE_RANGES},
        tails::Tail,
    },
    packet::{Parsed, parse},
};

use crate::{
    maps,
    packet::{Buffer, Packet},
    stage::{
        self,
        classify::{self, PodRange},
        conntrack::{self, Arrival, Owner},
        encap,
        lookup::{Ports, lookup, may_enter, may_leave},
        nat,
        network::Network,
        output::{self, How, Output},
        reject,
        select::{Refusal, candidates, hash, select},
        snat::{self, SnatAddress},
        stray::{self, Stray},
        takeover, trace,
    },
};

/// An address family with everything the stages ask of it.
pub trait Family: Network + PodRange + SnatAddress {}
impl<A: Network + PodRange + SnatAddress> Family for A {}

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
    let Some(parsed) = parse(packet, transport) else {
        return if transport.is_fragment() {
            go_on_in(packet, Tail::InFragment)
        } else {
            Output::CONTINUE.into()
        };
    };
    if !ports.include(&parsed) {
        return Output::CONTINUE.into();
    }
    let back = Output::by(How::Transmit, packet.ifindex());
    if ports.are_direct() {
        return go_on_in(packet, Tail::InDirect);
    }
    match enter(packet, &parsed, ports) {
        Ok(output) => output.into(),
        Err(refusal) => refuse(packet, &parsed, &refusal, Hook::INGRESS, back),
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
    let Some(parsed) = parse(packet, transport) else {
        return if transport.is_fragment() {
            go_on_in(packet, Tail::OutFragment)
        } else {
            Output::CONTINUE.into()
        };
    };
    if !ports.include(&parsed) {
        return Output::CONTINUE.into();
    }
    let back = Output::by(How::Receive, packet.ifindex());
    if ports.are_direct() {
        return go_on_in(packet, Tail::OutDirect);
    }
    match leave(packet, &parsed, ports) {
        Ok(output) => output.into(),
        Err(refusal) => refuse(packet, &parsed, &refusal, Hook::EGRESS, back),
    }
}

/// Leaves the packet to another program. If that is missing, the packet goes on as it came.
#[inline(always)]
fn go_on_in<P: Packet>(packet: &P, tail: Tail) -> Verdict {
    maps::tail_call(packet, tail);
    Output::CONTINUE.into()
}

#[inline(always)]
fn refuse<P: Buffer, A: Family>(
    packet: &P,
    parsed: &Parsed<A>,
    refusal: &Refusal,
    hook: Hook,
    back: Output,
) -> Verdict {
    let service = refusal.service;
    trace::refused(&Arrival::uncounted(packet, hook), &parsed.tuple, service, refusal.reason);
    if !refusal.reject {
        return Verdict { output: Output::DROP, refused: Some(refusal.reason), service };
    }
    if !reject::within_budget() {
        return Verdict { output: Output::DROP, refused: Some(DropReason::RejectRateLimited), service };
    }
    let answered = if refusal.mtu == 0 {
        reject::reject(packet, parsed)
    } else {
        reject::too_big(packet, parsed, refusal.mtu)
    };
    let answered = answered.unwrap_or(false);
    Verdict { output: if answered { back } else { Output::DROP }, refused: Some(refusal.reason), service }
}

/// What becomes of a packet at a hook.
struct Passage<A> {
    target: Tuple<A>,
    /// [`Role::NONE`] if it is not ours.
    role: u8,
    /// For [`Role::REV_HOST`] the interface that takes it, for [`Role::HOST`] the one it leaves by.
    ifindex: u32,
}

impl<A: Family> Passage<A> {
    #[inline(always)]
    fn not_ours(parsed: &Parsed<A>) -> Self {
        Self { target: parsed.tuple, role: Role::NONE.0, ifindex: 0 }
    }

    /// The packet goes on as it came.
    #[inline(always)]
    fn is_left(&self) -> bool {
        self.role == Role::NONE.0 || self.role == Role::LEAVE.0 || self.role == Role::PASS.0
    }
}

/// ① reply to one of our masqueraded connections, ② packet to a frontend.
#[inline(always)]
fn enter<P: Packet, A: Family>(packet: &P, parsed: &Parsed<A>, ports: Ports) -> Result<Output, Refusal> {
    let entry = entry_of(packet, parsed)?;
    if entry.role == Role::NONE.0 && ports.include_direct(parsed) {
        return Ok(go_on_in(packet, Tail::InDirect).output);
    }
    if parsed.transport.is_fragment() {
        return Ok(go_on_in(packet, Tail::InFragment).output);
    }
    if entry.is_left() {
        return Ok(Output::CONTINUE);
    }
    if entry.role == Role::DSR.0 {
        return encap::send(packet, &parsed.transport, &entry.target.dst);
    }
    nat::rewrite(packet, parsed, &entry.target)?;
    if entry.role == Role::REV_HOST.0 {
        output::address_to(packet, entry.ifindex)?;
        return Ok(Output::by(How::Receive, entry.ifindex));
    }
    Ok(Output::CONTINUE)
}

/// Finds the connection of a packet that came in, or opens it.
#[inline(always)]
fn entry_of<P: Packet, A: Family>(packet: &P, parsed: &Parsed<A>) -> Result<Passage<A>, Refusal> {
    let arrival = Arrival::at(packet, P::ENTRY);
    if let Some(row) = conntrack::find(packet, &arrival, parsed, INGRESS) {
        return Ok(Passage { target: row.target(parsed.tuple.proto), role: row.role, ifindex: row.ifindex });
    }
    // What is in the middle of a connection is the tc program's to judge.
    let in_driver = P::ENTRY.0 == Hook::XDP.0;
    if takeover::is_netfilters(parsed) || (in_driver && !parsed.opens()) {
        return Ok(Passage::not_ours(parsed));
    }
    let Some(frontend) = frontend_of(parsed)? else { return Ok(Passage::not_ours(parsed)) };
    let stray = if in_driver { Stray::Opens } else { stray::judge(parsed, frontend) };
    if stray == Stray::Reply {
        stage::direct::note(&CtKey::new(&parsed.tuple, INGRESS));
    }
    if stray == Stray::GoesOn || stray == Stray::Reply {
        return Ok(Passage::not_ours(parsed));
    }
    connect(&arrival, parsed, frontend, stray).map_err(|refusal| refusal.of(frontend.service))
}

/// Opens a connection to a frontend.
#[inline(always)]
fn connect<A: Family>(
    arrival: &Arrival,
    parsed: &Parsed<A>,
    frontend: &Frontend,
    stray: Stray,
) -> Result<Passage<A>, Refusal> {
    let client = parsed.tuple.src;
    if frontend.flags & SOURCE_RANGES != 0 && !maps::in_source_ranges(frontend.service, &client) {
        return Err(DropReason::SourceNotAllowed.into());
    }
    let class = classify::classify(&client, arrival.ifindex);
    let candidates = candidates(frontend, class)?;
    stray.admit()?;
    let choice = select(frontend, candidates, &client, hash(frontend, &parsed.tuple))?;
    let (target, role, marks) = if choice.dsr {
        (conntrack::create_dsr(arrival, parsed, frontend, &choice)?, Role::DSR.0, events::flags::DSR)
    } else {
        (
            conntrack::create(arrival, parsed, frontend, &choice)?,
            Role::DNAT.0,
            if choice.snat { events::flags::SNAT } else { 0 },
        )
    };
    trace::opened(arrival, &parsed.tuple, &target, Owner::new(frontend, choice.id), marks);
    Ok(Passage { target, role, ifindex: 0 })
}

/// ③ masquerade, ④ reply of a translated connection, ⑤ packet of a host process that the
/// socket hooks did not translate.
#[inline(always)]
fn leave<P: Packet, A: Family>(packet: &P, parsed: &Parsed<A>, ports: Ports) -> Result<Output, Refusal> {
    let exit = exit_of(packet, parsed)?;
    if exit.role == Role::NONE.0 && ports.include_direct(parsed) {
        return Ok(go_on_in(packet, Tail::OutDirect).output);
    }
    if parsed.transport.is_fragment() {
        return Ok(go_on_in(packet, Tail::OutFragment).output);
    }
    if exit.is_left() {
        return Ok(Output::CONTINUE);
    }
    nat::rewrite(packet, parsed, &exit.target)?;
    if exit.role == Role::HOST.0 {
        return Ok(output::send_by(packet, exit.ifindex)?);
    }
    Ok(Output::CONTINUE)
}

/// Finds the connection of a packet that leaves; opens it for a process of this host.
#[inline(always)]
fn exit_of<P: Packet, A: Family>(packet: &P, parsed: &Parsed<A>) -> Result<Passage<A>, Refusal> {
    let arrival = Arrival::at(packet, Hook::EGRESS);
    if let Some(row) = conntrack::find(packet, &arrival, parsed, EGRESS) {
        let role = row.role;
        let target = if row.flags & flags::SNAT_PENDING != 0 {
            snat::complete(row, &parsed.tuple, packet.ifindex())?
        } else {
            row.target(parsed.tuple.proto)
        };
        let ifindex = if role == Role::HOST.0 { output::route(packet, &target)? } else { 0 };
        return Ok(Passage { target, role, ifindex });
    }
    let frontend = if packet.ingress_ifindex() == 0 { frontend_of(parsed)? } else { None };
    let Some(frontend) = frontend else { return Ok(Passage::not_ours(parsed)) };
    let stray = stray::judge(parsed, frontend);
    if stray == Stray::GoesOn || stray == Stray::Reply {
        return Ok(Passage::not_ours(parsed));
    }
    let connected = connect_from_host(packet, &arrival, parsed, frontend, stray);
    let (target, ifindex) = connected.map_err(|refusal| refusal.of(frontend.service))?;
    Ok(Passage { target, role: Role::HOST.0, ifindex })
}

#[inline(always)]
fn frontend_of<A: Family>(parsed: &Parsed<A>) -> Result<Option<&'static Frontend>, Refusal> {
    lookup(parsed.tuple.dst, parsed.tuple.dport, parsed.tuple.proto)
}

/// Enters the two rows of a host process's connection; returns the tuple of its packets
/// and the interface they leave by.
#[inline(always)]
fn connect_from_host<P: Packet, A: Family>(
    packet: &P,
    arrival: &Arrival,
    parsed: &Parsed<A>,
    frontend: &Frontend,
    stray: Stray,
) -> Result<(Tuple<A>, u32), Refusal> {
    let original = &parsed.tuple;
    let candidates = candidates(frontend, ClientClass::Node)?;
    stray.admit()?;
    let choice = select(frontend, candidates, &original.src, hash(frontend, original))?;
    let mut target = Tuple { dst: choice.backend.addr, dport: choice.backend.port, ..*original };
    let out = output::route(packet, &target)?;
    let reply_to = original.reversed();
    // One row for both directions in turn.
    let owner = Owner::new(frontend, choice.id);
    let row = maps::new_row::<A>().ok_or(DropReason::InvalidMapState)?;
    *row = conntrack::row(owner, &reply_to, Role::REV_HOST, flags::SNAT);
    row.ifindex = packet.ifindex();
    target.src = snat::address::<A>(out)?;
    snat::claim(&mut target, row)?;
    row.set_target(&target);
    row.role = Role::HOST.0;
    conntrack::first(arrival, parsed, row);
    maps::conntrack_put(&CtKey::new(original, EGRESS), row)?;
    owner.count::<A>();
    trace::opened(arrival, original, &target, owner, events::flags::SNAT);
    Ok((target, out))
}

//! Rows of the connection table: open a connection.

use proxy_common::{
    DropReason, Tuple, flow,
    maps::{
        address_filter::flags::{CLIENT, MASQUERADED},
        conntrack::{CtEntry, EGRESS, INGRESS, Role, Ticks, flags},
        counters::CounterKey,
        frontends::Frontend,
    },
    packet::Parsed,
};

use super::{
    conntrack::{Arrival, first, now, ticks},
    ports,
    retire::{replace, retire, settle},
    select::Choice,
    transient,
};
use crate::maps::{self, Claim, Tables};

/// Timer ticks, a second at least, after which nothing more is heard of a connection that has ended.
const QUIET: Ticks = 1000;
/// More than that on any kernel, in nanoseconds, and less than it takes ticks to go round.
const LONG_NS: u64 = 20_000_000_000;

/// Whose connection a row belongs to.
#[derive(Clone, Copy)]
pub struct Owner {
    pub service: u32,
    pub backend: u32,
    pub kind: u8,
}

impl Owner {
    /// A connection to the frontend, served by the backend with the id.
    #[inline(always)]
    pub fn new(frontend: &Frontend, backend: u32) -> Self {
        Self { service: frontend.service, backend, kind: frontend.kind }
    }

    /// Counts a connection of this owner.
    #[inline(always)]
    pub fn count<A: Tables>(self) {
        let Self { service, backend, kind } = self;
        maps::count_opened::<A>(&CounterKey { service, backend, kind: u32::from(kind) });
    }
}

/// Room for the rows of a connection in turn. The first one is to `target`, and no packet has matched it yet.
///
/// # Errors
/// When there is no such room: the map is not what it should be.
#[inline(always)]
pub fn begin<A: Tables>(
    owner: Owner,
    target: &Tuple<A>,
    role: Role,
    flags: u8,
) -> Result<&'static mut CtEntry<A>, DropReason> {
    let row = maps::new_row::<A>().ok_or(DropReason::InvalidMapState)?;
    // Field by field: the stack has no room for a row.
    row.last_seen = now();
    (row.service, row.backend, row.kind) = (owner.service, owner.backend, owner.kind);
    row.set_target(target);
    (row.role, row.flags, row.tcp_flags) = (role.0, flags, 0);
    row.name_masquerade(A::default(), 0);
    row.ifindex = 0;
    row.ticks = ticks();
    (row.packets, row.bytes) = (0, 0);
    Ok(row)
}

/// Enters a new connection at ingress; returns the row of its packets. `hash` is that of the packet's tuple.
#[inline(always)]
pub fn create<A: Tables>(
    arrival: &Arrival,
    parsed: &Parsed<A>,
    frontend: &Frontend,
    choice: &Choice<A>,
    hash: u32,
) -> Result<&'static CtEntry<A>, DropReason> {
    let original = &parsed.tuple;
    let backend = choice.backend;
    let owner = Owner::new(frontend, choice.id);
    // A pod that reaches itself must see a foreign source, else it would answer itself directly.
    let snat = choice.snat || backend.addr == original.src;
    let row_flags = if snat { flags::SNAT } else { 0 };
    let mut target = Tuple { dst: backend.addr, dport: backend.port, ..*original };
    maps::admit_address(&original.src, if snat { CLIENT | MASQUERADED } else { CLIENT });
    let row = begin(owner, &original.reversed(), Role::REV_DNAT, row_flags)?;
    claim_reply(&mut target, hash)?;
    row.set_target(&target);
    enter_rest(arrival, parsed, row, row_flags).inspect_err(|_| {
        leave(&target.reversed(), EGRESS);
        if snat {
            leave(&target, EGRESS);
        }
    })?;
    transient::wait::<A>(original.proto);
    owner.count::<A>();
    Ok(row)
}

/// Enters the rows of packets from the client, once that of replies is there.
#[inline(always)]
fn enter_rest<A: Tables>(
    arrival: &Arrival,
    parsed: &Parsed<A>,
    row: &mut CtEntry<A>,
    row_flags: u8,
) -> Result<(), DropReason> {
    let key = maps::new_key::<A>().ok_or(DropReason::InvalidMapState)?;
    if row_flags & flags::SNAT != 0 {
        row.role = Role::SNAT.0;
        row.flags = row_flags | flags::SNAT_PENDING;
        row.name_frontend(&parsed.tuple);
        key.set(&row.target(parsed.tuple.proto), EGRESS);
        maps::conntrack_put(key, row)?;
        row.name_masquerade(A::default(), 0);
    }
    row.role = Role::DNAT.0;
    row.flags = row_flags;
    first(arrival, parsed, row);
    enter_first(&parsed.tuple, INGRESS, row)
}

/// Enters the row of packets that come to `hook` from the client.
///
/// # Errors
/// When there is no room; then those that were entered before [`leave`].
#[inline(always)]
pub fn enter_first<A: Tables>(original: &Tuple<A>, hook: u8, row: &mut CtEntry<A>) -> Result<(), DropReason> {
    let key = maps::new_key::<A>().ok_or(DropReason::InvalidMapState)?;
    key.set(original, hook);
    replace(key, row)
}

/// Removes a row of a connection whose first row has found no room: it waits in no queue, so that nobody would
/// remove the others to make some.
#[inline(always)]
pub fn leave<A: Tables>(tuple: &Tuple<A>, hook: u8) {
    let Some(key) = maps::new_key::<A>() else { return };
    key.set(tuple, hook);
    maps::conntrack_remove(key);
}

/// Enters a connection whose replies do not come back here; returns the row of its packets. They are not
/// rewritten, but sent where it says.
#[inline(always)]
pub fn create_dsr<A: Tables>(
    arrival: &Arrival,
    parsed: &Parsed<A>,
    frontend: &Frontend,
    choice: &Choice<A>,
) -> Result<&'static CtEntry<A>, DropReason> {
    let target = Tuple { dst: choice.backend.addr, dport: choice.backend.port, ..parsed.tuple };
    let owner = Owner::new(frontend, choice.id);
    let row = begin(owner, &target, Role::DSR, 0)?;
    first(arrival, parsed, row);
    let key = maps::new_key::<A>().ok_or(DropReason::InvalidMapState)?;
    key.set(&parsed.tuple, INGRESS);
    replace(key, row)?;
    transient::wait::<A>(parsed.tuple.proto);
    owner.count::<A>();
    Ok(row)
}

/// Enters the reply's row. Two frontends may lead one client port to the same backend:
/// then the later connection gets another source port, or the replies could not be told
/// apart.
#[inline(always)]
fn claim_reply<A: Tables>(target: &mut Tuple<A>, hash: u32) -> Result<(), DropReason> {
    let reply = maps::new_row::<A>().ok_or(DropReason::InvalidMapState)?;
    let key = maps::new_key::<A>().ok_or(DropReason::InvalidMapState)?;
    key.set(&target.reversed(), EGRESS);
    if maps::conntrack_claim(key, reply) == Claim::Entered {
        return Ok(());
    }
    // It may have gone since.
    let known = maps::other_row(key);
    let has_end = |known: &&mut CtEntry<A>| is_by_same_frontend(known, reply) || is_long_over(known);
    if known.as_ref().is_none_or(has_end) {
        let was_masked = known.as_ref().is_some_and(|known| known.flags & flags::SNAT != 0);
        // Late packets of the old one come first.
        reply.flags |= flags::ANY_REPLY;
        if let Some(known) = known {
            settle(known);
        }
        maps::conntrack_put(key, reply)?;
        if was_masked {
            // Packets of the new connection would meet the row by which those of the old one left.
            key.set(target, EGRESS);
            retire(key);
        }
        return Ok(());
    }
    ports::claim(target, EGRESS, hash)
}

/// True if the backend has closed and said nothing since. Before that, its last words may be on their way, or the
/// client's: it would take the new connection for the old one.
#[inline(always)]
fn is_long_over<A>(reply: &CtEntry<A>) -> bool {
    let is_quiet =
        || ticks().wrapping_sub(reply.ticks) >= QUIET || now().wrapping_sub(reply.last_seen) >= LONG_NS;
    flow::ends(reply.tcp_flags) && is_quiet()
}

#[inline(always)]
fn is_by_same_frontend<A: Tables>(one: &CtEntry<A>, other: &CtEntry<A>) -> bool {
    one.src == other.src && one.sport == other.sport && one.dport == other.dport
}

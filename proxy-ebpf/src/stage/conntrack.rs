//! Rows of the connection table: find, keep alive, create.

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    DropReason, Tuple,
    flow::{self, SourcePorts},
    hash,
    maps::{
        address_filter::flags::{CLIENT, MASQUERADED},
        conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, Ticks, flags},
        counters::CounterKey,
        events::Hook,
        frontends::Frontend,
        settings::Settings,
        tails::Tail,
    },
    packet::Parsed,
};

use super::{direct, lost, over, select::Choice};
use crate::{
    maps::{self, Tables},
    packet::Packet,
};

/// `last_seen` is written at most once in this time, so that the CPUs of a busy
/// connection do not fight over its cache line.
const RESOLUTION_NS: u64 = 1_000_000_000;
/// Source ports tried for a client whose own port is taken at the backend.
pub const REMAP_TRIES: u32 = 16;

/// Time since boot in nanoseconds, to a few milliseconds.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { helper::bpf_ktime_get_coarse_ns() }
}

/// Another program has to see the packet first.
pub struct Unfinished;

/// The row for this packet at `hook`, if it still holds.
///
/// # Errors
/// Under the driver, when the tc program is to see to the rows. That one goes on in another program then, and
/// comes back only if that is missing.
#[inline(always)]
pub fn find<P: Packet, A: Tables>(
    packet: &P,
    arrival: &Arrival,
    parsed: &Parsed<A>,
    hook: u8,
) -> Result<Option<&'static mut CtEntry<A>>, Unfinished> {
    let key = maps::new_key().ok_or(Unfinished)?;
    key.set(&parsed.tuple, hook);
    let Some(entry) = maps::conntrack(key) else { return Ok(None) };
    if over::is_over(entry, parsed, key) {
        return Ok(None);
    }
    let in_driver = P::ENTRY.0 == Hook::XDP.0;
    if direct::meets_another(entry, parsed, hook, key) {
        if !in_driver {
            maps::tail_call(packet, if hook == INGRESS { Tail::InDirect } else { Tail::OutDirect });
        }
        return Err(Unfinished);
    }
    let answers_another = over::answers_another(entry, parsed, key);
    let is_due = is_due(entry);
    if answers_another || (is_due && !lost::is_whole(entry, &parsed.tuple, hook, key)) {
        if in_driver {
            // It is due for the tc program, too.
            entry.ticks = 0;
            return Err(Unfinished);
        }
        maps::tail_call(packet, if hook == INGRESS { Tail::InLost } else { Tail::OutLost });
        if answers_another {
            return Err(Unfinished);
        }
    }
    touch(arrival, entry, parsed.tcp_flags);
    Ok(Some(entry))
}

/// True if there is such a row for this packet at ingress, which another program will find again.
#[inline(always)]
pub fn is_known<A: Tables>(parsed: &Parsed<A>, role: Role) -> bool {
    let Some(key) = maps::new_key() else { return false };
    key.set(&parsed.tuple, INGRESS);
    let Some(entry) = maps::conntrack(key) else { return false };
    entry.role == role.0 && !over::is_over(entry, parsed, key)
}

/// The row of the next step of a packet that has become `tuple`, under the driver.
///
/// # Errors
/// When rows of its connection are missing, which the tc program finds again.
#[inline(always)]
pub fn follow<A: Tables>(
    arrival: &Arrival,
    tuple: &Tuple<A>,
    hook: u8,
    tcp_flags: u8,
) -> Result<Option<&'static mut CtEntry<A>>, Unfinished> {
    let key = maps::new_key().ok_or(Unfinished)?;
    key.set(tuple, hook);
    let Some(entry) = maps::conntrack(key) else { return Ok(None) };
    if is_due(entry) && !lost::is_whole(entry, tuple, hook, key) {
        entry.ticks = 0;
        return Err(Unfinished);
    }
    touch(arrival, entry, tcp_flags);
    Ok(Some(entry))
}

/// The kernel's count of timer ticks.
#[inline(always)]
pub fn ticks() -> Ticks {
    // Unlike the clock's, this call is no call: the verifier puts a load in its place.
    // SAFETY: the helper has no preconditions.
    (unsafe { helper::bpf_jiffies64() }) as Ticks
}

/// True once in each timer tick, for what is not to be done for each packet.
#[inline(always)]
fn is_due<A>(entry: &mut CtEntry<A>) -> bool {
    let ticks = ticks();
    let is_due = entry.ticks != ticks;
    if is_due {
        entry.ticks = ticks;
        let now = now();
        if now.wrapping_sub(entry.last_seen) >= RESOLUTION_NS {
            entry.last_seen = now;
            entry.flags |= flags::LASTING;
        }
    }
    is_due
}

/// Notes a packet.
#[inline(always)]
pub fn touch<A>(arrival: &Arrival, entry: &mut CtEntry<A>, tcp_flags: u8) {
    entry.packets = entry.packets.wrapping_add(u64::from(arrival.packets));
    entry.bytes = entry.bytes.wrapping_add(u64::from(arrival.bytes));
    let noted = flow::noted(entry.tcp_flags, tcp_flags);
    if noted != entry.tcp_flags {
        entry.tcp_flags = noted;
    }
}

/// Where a packet is met, and what it adds to the counts of its connection.
#[derive(Clone, Copy)]
pub struct Arrival {
    pub hook: Hook,
    pub ifindex: u32,
    packets: u32,
    bytes: u32,
}

impl Arrival {
    /// At `hook`. Bytes are counted from the IP header on.
    #[inline(always)]
    pub fn at<P: Packet>(packet: &P, hook: Hook) -> Self {
        let bytes = packet.len().wrapping_sub(P::L2_LEN as u32);
        Self { hook, ifindex: packet.ifindex(), packets: packet.wire_packets(), bytes }
    }

    /// For another program that counts it.
    #[inline(always)]
    pub fn uncounted<P: Packet>(packet: &P, hook: Hook) -> Self {
        Self { hook, ifindex: packet.ifindex(), packets: 0, bytes: 0 }
    }
}

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

/// Room for the rows of a connection in turn and for their keys. The first row is one to `target` that no
/// packet has matched yet.
///
/// # Errors
/// When there is no such room: the map is not what it should be.
#[inline(always)]
pub fn begin<A: Tables>(
    owner: Owner,
    target: &Tuple<A>,
    role: Role,
    flags: u8,
) -> Result<(&'static mut CtEntry<A>, &'static mut CtKey<A>), DropReason> {
    let row = maps::new_row::<A>().ok_or(DropReason::InvalidMapState)?;
    let key = maps::new_key::<A>().ok_or(DropReason::InvalidMapState)?;
    // Field by field: the stack has no room for a row.
    row.last_seen = now();
    (row.service, row.backend, row.kind) = (owner.service, owner.backend, owner.kind);
    row.set_target(target);
    (row.role, row.flags, row.tcp_flags) = (role.0, flags, 0);
    row.name_masquerade(A::default(), 0);
    row.ifindex = 0;
    row.ticks = ticks();
    (row.packets, row.bytes) = (0, 0);
    #[cfg(feature = "next-layout")]
    {
        row.spare = 0;
    }
    Ok((row, key))
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
    let (row, key) = begin(owner, &original.reversed(), Role::REV_DNAT, row_flags)?;
    claim_reply(&mut target, row, key, hash)?;
    row.set_target(&target);
    if snat {
        row.role = Role::SNAT.0;
        row.flags = row_flags | flags::SNAT_PENDING;
        row.name_frontend(original);
        key.set(&target, EGRESS);
        maps::conntrack_put(key, row)?;
        row.name_masquerade(A::default(), 0);
    }
    row.role = Role::DNAT.0;
    row.flags = row_flags;
    first(arrival, parsed, row);
    key.set(original, INGRESS);
    maps::conntrack_put(key, row)?;
    owner.count::<A>();
    Ok(row)
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
    let (row, key) = begin(owner, &target, Role::DSR, 0)?;
    first(arrival, parsed, row);
    key.set(&parsed.tuple, INGRESS);
    maps::conntrack_put(key, row)?;
    owner.count::<A>();
    Ok(row)
}

/// Notes the packet that opens a connection in the row that packets like it will match.
#[inline(always)]
pub fn first<A: Tables>(arrival: &Arrival, parsed: &Parsed<A>, row: &mut CtEntry<A>) {
    row.tcp_flags = parsed.tcp_flags;
    row.packets = u64::from(arrival.packets);
    row.bytes = u64::from(arrival.bytes);
}

/// Enters the reply's row. Two frontends may lead one client port to the same backend:
/// then the later connection gets another source port, or the replies could not be told
/// apart.
#[inline(always)]
fn claim_reply<A: Tables>(
    target: &mut Tuple<A>,
    reply: &mut CtEntry<A>,
    key: &mut CtKey<A>,
    hash: u32,
) -> Result<(), DropReason> {
    key.set(&target.reversed(), EGRESS);
    if maps::conntrack_claim(key, reply) {
        return Ok(());
    }
    if let Some(known) = maps::conntrack(key)
        && (is_by_same_frontend(known, reply) || flow::ends(known.tcp_flags))
    {
        let was_masked = known.flags & flags::SNAT != 0;
        // Late packets of the old one come first.
        reply.flags |= flags::ANY_REPLY;
        maps::conntrack_put(key, reply)?;
        if was_masked {
            // Packets of the new connection would meet the row by which those of the old one left.
            key.set(target, EGRESS);
            maps::conntrack_remove(key);
        }
        return Ok(());
    }
    claim_port(target, EGRESS, reply, key, (hash, REMAP_TRIES))
}

#[inline(always)]
fn is_by_same_frontend<A: Tables>(one: &CtEntry<A>, other: &CtEntry<A>) -> bool {
    one.src == other.src && one.sport == other.sport && one.dport == other.dport
}

/// Gives `forward` the source port that it has had, if its other rows were lost or the client opens it anew:
/// true if the row that its reply meets at `hook` was there.
#[inline(always)]
pub fn claim_own_port<A: Tables>(
    forward: &mut Tuple<A>,
    hook: u8,
    reply: &mut CtEntry<A>,
    key: &mut CtKey<A>,
    hash: u32,
) -> bool {
    key.set(&forward.reversed(), hook);
    key.dport = source_ports(hash).port();
    let is_own = |known: &mut CtEntry<A>| known.role == reply.role && known.becomes_as(reply);
    if !maps::conntrack(key).is_some_and(is_own) {
        return false;
    }
    reply.flags |= flags::ANY_REPLY;
    forward.sport = key.dport;
    maps::conntrack_put(key, reply).is_ok()
}

/// Gives `forward` a source port that is free, and enters the row that its reply meets at `hook`. `key` is room for keys; the hash is that of the connection.
#[inline(always)]
pub fn claim_port<A: Tables>(
    forward: &mut Tuple<A>,
    hook: u8,
    reply: &mut CtEntry<A>,
    key: &mut CtKey<A>,
    (hash, tries): (u32, u32),
) -> Result<(), DropReason> {
    let mut ports = source_ports(hash);
    key.set(&forward.reversed(), hook);
    for _ in 0..tries {
        key.dport = ports.port();
        if maps::conntrack_claim(key, reply) {
            forward.sport = key.dport;
            return Ok(());
        }
        ports.advance();
    }
    Err(DropReason::SnatPortsExhausted)
}

/// The source ports that a connection tries with this hash.
#[inline(always)]
pub fn source_ports(hash: u32) -> SourcePorts {
    // There are settings: the map is an array of one. An Option of the ports would have fields that are not set,
    // which the compiler may move all the same.
    let range = |settings: &Settings| (settings.snat_port_first, settings.snat_port_count);
    let (first, count) = maps::settings().map_or((0, 1), range);
    SourcePorts::new(first, count, hash)
}

/// The hash of a connection by which this node finds its backend and source port again. `tuple` is that of
/// its packets where it comes by.
#[inline(always)]
pub fn hash<A: Tables>(tuple: &Tuple<A>) -> u32 {
    let secret = maps::settings().map_or([0; 2], |settings| settings.secret);
    hash::keyed(&secret, tuple)
}

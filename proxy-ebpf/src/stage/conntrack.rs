//! Rows of the connection table: find, keep alive, create.

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    DropReason, Tuple,
    maps::{
        conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, Ticks, flags},
        counters::CounterKey,
        events::Hook,
        frontends::Frontend,
    },
    packet::{Parsed, headers::tcp_flags},
    proto,
};

use super::select::Choice;
use crate::{
    maps::{self, Tables},
    packet::Packet,
};

/// `last_seen` is written at most once in this time, so that the CPUs of a busy
/// connection do not fight over its cache line.
const RESOLUTION_NS: u64 = 1_000_000_000;
/// The clock is not read more often than this. Between a tenth of a second and one, for the
/// kernel ticks 100 to 1,000 times a second.
const RESOLUTION_TICKS: Ticks = 100;
/// A UDP flow that netfilter translates is its own for less time than netfilter remembers a flow
/// without replies (nf_conntrack_udp_timeout).
const LEAVE_IDLE_NS: u64 = 28_000_000_000;
/// Source ports tried for a client whose own port is taken at the backend.
const REMAP_TRIES: u32 = 16;

/// Time since boot in nanoseconds, to a few milliseconds.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { helper::bpf_ktime_get_coarse_ns() }
}

/// The row for this packet at `hook`, if it still holds.
#[inline(always)]
pub fn find<A: Tables>(arrival: &Arrival, parsed: &Parsed<A>, hook: u8) -> Option<&'static mut CtEntry<A>> {
    let entry = maps::conntrack(&CtKey::new(&parsed.tuple, hook))?;
    if is_over(entry, parsed) {
        return None;
    }
    touch(arrival, entry, parsed.tcp_flags);
    Some(entry)
}

/// The row of the next step of a packet that has become `tuple`.
#[inline(always)]
pub fn follow<A: Tables>(
    arrival: &Arrival,
    tuple: &Tuple<A>,
    hook: u8,
    tcp_flags: u8,
) -> Option<&'static mut CtEntry<A>> {
    let entry = maps::conntrack(&CtKey::new(tuple, hook))?;
    touch(arrival, entry, tcp_flags);
    Some(entry)
}

/// True when a packet may not follow the row it matches: it opens a connection, and the row
/// belongs to one that ended or whose backend is gone; or it is UDP, to a backend that is gone.
/// Netfilter's connections end sooner: no rule of its own gives it another.
#[inline(always)]
fn is_over<A: Tables>(entry: &CtEntry<A>, parsed: &Parsed<A>) -> bool {
    let opens = parsed.tcp_flags & (tcp_flags::SYN | tcp_flags::ACK) == tcp_flags::SYN;
    if entry.role == Role::LEAVE.0 {
        let stale = now().wrapping_sub(entry.last_seen) >= LEAVE_IDLE_NS;
        return if parsed.tuple.proto == proto::TCP { opens } else { stale };
    }
    if !Role(entry.role).is_primary() {
        return false;
    }
    match parsed.tuple.proto {
        proto::TCP => {
            opens && (closing(entry.tcp_flags) || backend_is_gone(entry) || reply_is_closing(entry, parsed))
        }
        proto::UDP => backend_is_gone(entry),
        _ => false,
    }
}

#[inline(always)]
fn backend_is_gone<A: Tables>(entry: &CtEntry<A>) -> bool {
    maps::backend::<A>(entry.backend).is_none_or(|b| b.addr != entry.dst || b.port != entry.dport)
}

#[inline(always)]
fn closing(seen: u8) -> bool {
    seen & (tcp_flags::FIN | tcp_flags::RST) != 0
}

#[inline(always)]
fn reply_is_closing<A: Tables>(entry: &CtEntry<A>, parsed: &Parsed<A>) -> bool {
    let hook = if entry.role == Role::HOST.0 { INGRESS } else { EGRESS };
    let reply = entry.target(parsed.tuple.proto).reversed();
    maps::conntrack(&CtKey::new(&reply, hook)).is_some_and(|e| closing(e.tcp_flags))
}

#[inline(always)]
fn touch<A>(arrival: &Arrival, entry: &mut CtEntry<A>, tcp_flags: u8) {
    entry.packets = entry.packets.wrapping_add(u64::from(arrival.packets));
    entry.bytes = entry.bytes.wrapping_add(u64::from(arrival.bytes));
    // Unlike the clock's, this call is no call: the verifier puts a load in its place.
    // SAFETY: the helper has no preconditions.
    let ticks = unsafe { helper::bpf_jiffies64() } as Ticks;
    if ticks.wrapping_sub(entry.ticks) >= RESOLUTION_TICKS {
        entry.ticks = ticks;
        let now = now();
        if now.wrapping_sub(entry.last_seen) >= RESOLUTION_NS {
            entry.last_seen = now;
            entry.flags |= flags::LASTING;
        }
    }
    if tcp_flags & !entry.tcp_flags != 0 {
        entry.tcp_flags |= tcp_flags;
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

/// A row that no packet has matched yet.
#[inline(always)]
pub fn row<A: Tables>(owner: Owner, target: &Tuple<A>, role: Role, flags: u8) -> CtEntry<A> {
    CtEntry {
        last_seen: now(),
        service: owner.service,
        backend: owner.backend,
        src: target.src,
        dst: target.dst,
        sport: target.sport,
        dport: target.dport,
        role: role.0,
        flags,
        tcp_flags: 0,
        kind: owner.kind,
        ifindex: 0,
        #[cfg(feature = "next-layout")]
        spare: 0,
        ticks: 0,
        packets: 0,
        bytes: 0,
    }
}

/// Enters a new connection at ingress; returns the tuple to write into its packet.
#[inline(always)]
pub fn create<A: Tables>(
    arrival: &Arrival,
    parsed: &Parsed<A>,
    frontend: &Frontend,
    choice: &Choice<A>,
) -> Result<Tuple<A>, DropReason> {
    let original = &parsed.tuple;
    let backend = choice.backend;
    let owner = Owner::new(frontend, choice.id);
    // A pod that reaches itself must see a foreign source, else it would answer itself directly.
    let snat = choice.snat || backend.addr == original.src;
    let row_flags = if snat { flags::SNAT } else { 0 };
    let mut target = Tuple { dst: backend.addr, dport: backend.port, ..*original };
    // One row for all in turn.
    let row = maps::new_row::<A>().ok_or(DropReason::InvalidMapState)?;
    *row = self::row(owner, &original.reversed(), Role::REV_DNAT, row_flags);
    claim_reply(&mut target, row)?;
    row.set_target(&target);
    if snat {
        row.role = Role::SNAT.0;
        row.flags = row_flags | flags::SNAT_PENDING;
        maps::conntrack_put(&CtKey::new(&target, EGRESS), row)?;
        row.flags = row_flags;
    }
    row.role = Role::DNAT.0;
    first(arrival, parsed, row);
    maps::conntrack_put(&CtKey::new(original, INGRESS), row)?;
    owner.count::<A>();
    Ok(target)
}

/// Enters a connection whose replies do not come back here. Its packets are not rewritten;
/// the returned tuple says where they are sent.
#[inline(always)]
pub fn create_dsr<A: Tables>(
    arrival: &Arrival,
    parsed: &Parsed<A>,
    frontend: &Frontend,
    choice: &Choice<A>,
) -> Result<Tuple<A>, DropReason> {
    let target = Tuple { dst: choice.backend.addr, dport: choice.backend.port, ..parsed.tuple };
    let owner = Owner::new(frontend, choice.id);
    let mut forward = row(owner, &target, Role::DSR, 0);
    first(arrival, parsed, &mut forward);
    maps::conntrack_put(&CtKey::new(&parsed.tuple, INGRESS), &forward)?;
    owner.count::<A>();
    Ok(target)
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
fn claim_reply<A: Tables>(target: &mut Tuple<A>, reply: &CtEntry<A>) -> Result<(), DropReason> {
    let key = CtKey::new(&target.reversed(), EGRESS);
    if maps::conntrack_claim(&key, reply) {
        return Ok(());
    }
    if let Some(known) = maps::conntrack(&key) {
        let same = known.src == reply.src && known.sport == reply.sport && known.dport == reply.dport;
        if same || closing(known.tcp_flags) {
            return maps::conntrack_put(&key, reply);
        }
    }
    let settings = maps::settings().ok_or(DropReason::InvalidMapState)?;
    let mut key = key;
    for _ in 0..REMAP_TRIES {
        key.dport = random_port(settings.snat_port_first, settings.snat_port_count);
        if maps::conntrack_claim(&key, reply) {
            target.sport = key.dport;
            return Ok(());
        }
    }
    Err(DropReason::SnatPortsExhausted)
}

/// A port of the range kept for masquerading.
#[inline(always)]
pub fn random_port(first: u16, count: u16) -> u16 {
    // SAFETY: the helper has no preconditions.
    let random = unsafe { helper::bpf_get_prandom_u32() };
    let count = if count == 0 { 1 } else { u32::from(count) };
    first.wrapping_add((random % count) as u16)
}

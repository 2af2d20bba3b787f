//! Rows of the connection table: find, keep alive, create.

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    DropReason, Tuple,
    maps::{
        address_filter::flags::{CLIENT, MASQUERADED},
        conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, Ticks, flags},
        counters::CounterKey,
        events::Hook,
        frontends::Frontend,
        settings::flags::HANDOVER,
        tails::Tail,
    },
    packet::{Parsed, headers::tcp_flags},
};

use super::{direct, over, select::Choice};
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
/// Source ports tried for a client whose own port is taken at the backend.
pub const REMAP_TRIES: u32 = 16;

/// Time since boot in nanoseconds, to a few milliseconds.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { helper::bpf_ktime_get_coarse_ns() }
}

/// The row for this packet at `hook`, if it still holds.
#[inline(always)]
pub fn find<P: Packet, A: Tables>(
    packet: &P,
    arrival: &Arrival,
    parsed: &Parsed<A>,
    hook: u8,
) -> Option<&'static mut CtEntry<A>> {
    let mut key = CtKey::new(&parsed.tuple, hook);
    let entry = maps::conntrack(&key)?;
    if over::is_over(entry, parsed) {
        return None;
    }
    if direct::meets_another(entry, parsed, hook, &mut key) {
        // The driver has it go up.
        if P::ENTRY.0 != Hook::XDP.0 {
            maps::tail_call(packet, if hook == INGRESS { Tail::InDirect } else { Tail::OutDirect });
        }
        return None;
    }
    if over::answers_another(entry, parsed, &mut key) {
        key = CtKey::new(&parsed.tuple, hook);
        maps::conntrack_remove(&key);
        return None;
    }
    if touch(arrival, entry, parsed.tcp_flags) {
        mend(arrival, entry, &parsed.tuple, hook, &mut key);
    }
    Some(entry)
}

/// True if there is such a row for this packet at ingress, which another program will find again.
#[inline(always)]
pub fn is_known<A: Tables>(parsed: &Parsed<A>, role: Role) -> bool {
    let entry = maps::conntrack(&CtKey::new(&parsed.tuple, INGRESS));
    entry.is_some_and(|entry| entry.role == role.0 && !over::is_over(entry, parsed))
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
    // No mending here: kernel 6.1 has no stack left for it in the XDP program.
    touch(arrival, entry, tcp_flags);
    Some(entry)
}

/// Enters again what the kernel has forgotten of a connection that goes on: it forgets rows one by
/// one, those first that no packet has matched for long, as with datagrams that are seldom answered.
/// `key` is room for keys, of which the stack has little.
///
/// Not during a handover: rows that are missing have moved on, and the programs that have them would
/// never see a packet that a row made here has masqueraded by another port.
#[inline(always)]
fn mend<A: Tables>(arrival: &Arrival, entry: &CtEntry<A>, tuple: &Tuple<A>, hook: u8, key: &mut CtKey<A>) {
    let role = match Role(entry.role) {
        Role::DNAT => Role::REV_DNAT,
        Role::SNAT if entry.flags & flags::SNAT_PENDING == 0 => Role::REV_SNAT,
        Role::HOST => Role::REV_HOST,
        Role::DIRECT => Role::REV_DIRECT,
        _ => return,
    };
    if maps::settings().is_none_or(|settings| settings.flags & HANDOVER != 0) {
        return;
    }
    let Some(row) = maps::new_row::<A>() else { return };
    let snat = entry.flags & flags::SNAT;
    *row = *entry;
    row.set_target(&tuple.reversed());
    (row.role, row.flags, row.ifindex) = (role.0, snat, arrival.ifindex);
    (row.tcp_flags, row.packets, row.bytes) = (entry.tcp_flags & tcp_flags::ACK, 0, 0);
    *key = entry.pair(tuple.proto, hook);
    if maps::conntrack(key).is_none() {
        maps::conntrack_claim(key, row);
    }
    if role != Role::REV_DNAT || snat == 0 {
        return;
    }
    *key = CtKey::new(&entry.target(tuple.proto), EGRESS);
    if maps::conntrack(key).is_none() {
        row.set_target(&entry.target(tuple.proto));
        (row.role, row.flags) = (Role::SNAT.0, snat | flags::SNAT_PENDING);
        maps::conntrack_claim(key, row);
    }
}

/// Notes a packet. True about once a second, for what is not to be done for each.
#[inline(always)]
pub fn touch<A>(arrival: &Arrival, entry: &mut CtEntry<A>, tcp_flags: u8) -> bool {
    let mut is_time = false;
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
            is_time = true;
        }
    }
    if tcp_flags & !entry.tcp_flags != 0 {
        entry.tcp_flags |= tcp_flags;
    }
    is_time
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
    maps::admit_address(&original.src, if snat { CLIENT | MASQUERADED } else { CLIENT });
    // One row for all in turn.
    let row = maps::new_row::<A>().ok_or(DropReason::InvalidMapState)?;
    *row = self::row(owner, &original.reversed(), Role::REV_DNAT, row_flags);
    claim_reply(&mut target, row)?;
    row.set_target(&target);
    if snat {
        row.role = Role::SNAT.0;
        row.flags = row_flags | flags::SNAT_PENDING;
        maps::conntrack_put(&CtKey::new(&target, EGRESS), row)?;
    }
    row.role = Role::DNAT.0;
    row.flags = row_flags;
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
fn claim_reply<A: Tables>(target: &mut Tuple<A>, reply: &mut CtEntry<A>) -> Result<(), DropReason> {
    let mut key = CtKey::new(&target.reversed(), EGRESS);
    if maps::conntrack_claim(&key, reply) {
        return Ok(());
    }
    if let Some(known) = maps::conntrack(&key) {
        let same = known.src == reply.src && known.sport == reply.sport && known.dport == reply.dport;
        if same || over::closing(known.tcp_flags) {
            let was_masked = known.flags & flags::SNAT != 0;
            // Late packets of the old one come first.
            reply.flags |= flags::ANY_REPLY;
            maps::conntrack_put(&key, reply)?;
            if was_masked {
                // Packets of the new connection would meet the row by which those of the old one left.
                key = CtKey::new(target, EGRESS);
                maps::conntrack_remove(&key);
            }
            return Ok(());
        }
    }
    claim_port(target, EGRESS, reply, REMAP_TRIES)
}

/// Gives `forward` a source port that is free, and enters the row that its reply meets at `hook`.
#[inline(always)]
pub fn claim_port<A: Tables>(
    forward: &mut Tuple<A>,
    hook: u8,
    reply: &CtEntry<A>,
    tries: u32,
) -> Result<(), DropReason> {
    let settings = maps::settings().ok_or(DropReason::InvalidMapState)?;
    let mut key = CtKey::new(&forward.reversed(), hook);
    for _ in 0..tries {
        key.dport = random_port(settings.snat_port_first, settings.snat_port_count);
        if maps::conntrack_claim(&key, reply) {
            forward.sport = key.dport;
            return Ok(());
        }
    }
    Err(DropReason::SnatPortsExhausted)
}

/// A port of the range kept for masquerading.
#[inline(always)]
fn random_port(first: u16, count: u16) -> u16 {
    // SAFETY: the helper has no preconditions.
    let random = unsafe { helper::bpf_get_prandom_u32() };
    let count = if count == 0 { 1 } else { u32::from(count) };
    first.wrapping_add((random % count) as u16)
}

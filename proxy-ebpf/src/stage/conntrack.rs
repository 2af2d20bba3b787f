//! Rows of the connection table: find, keep alive, create.

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    DropReason, Tuple,
    maps::conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, flags},
    packet::{Parsed, headers::tcp_flags},
    proto,
};

use super::select::Choice;
use crate::maps::{self, Tables};

/// `last_seen` is written at most once in this time, so that the CPUs of a busy
/// connection do not fight over its cache line.
const RESOLUTION_NS: u64 = 1_000_000_000;
/// The clock is not read more often than this. Between a tenth of a second and one, for the
/// kernel ticks 100 to 1,000 times a second.
const RESOLUTION_TICKS: u32 = 100;
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
pub fn find<A: Tables>(parsed: &Parsed<A>, hook: u8) -> Option<&'static mut CtEntry<A>> {
    let entry = maps::conntrack(&CtKey::new(&parsed.tuple, hook))?;
    if Role(entry.role).is_primary() && is_over(entry, parsed) {
        return None;
    }
    touch(entry, parsed.tcp_flags);
    Some(entry)
}

/// The row of the next step of a packet that has become `tuple`.
#[inline(always)]
pub fn follow<A: Tables>(tuple: &Tuple<A>, hook: u8, tcp_flags: u8) -> Option<&'static mut CtEntry<A>> {
    let entry = maps::conntrack(&CtKey::new(tuple, hook))?;
    touch(entry, tcp_flags);
    Some(entry)
}

/// True when a packet may not follow the row it matches: it opens a connection, and the row
/// belongs to one that ended or whose backend is gone; or it is UDP, to a backend that is gone.
#[inline(always)]
fn is_over<A: Tables>(entry: &CtEntry<A>, parsed: &Parsed<A>) -> bool {
    match parsed.tuple.proto {
        proto::TCP => {
            let opens = parsed.tcp_flags & (tcp_flags::SYN | tcp_flags::ACK) == tcp_flags::SYN;
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
fn touch<A>(entry: &mut CtEntry<A>, tcp_flags: u8) {
    // Unlike the clock's, this call is no call: the verifier puts a load in its place.
    // SAFETY: the helper has no preconditions.
    let ticks = unsafe { helper::bpf_jiffies64() } as u32;
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

/// A row of the connection that `choice` and `service` define.
#[inline(always)]
pub fn row<A: Tables>(service: u32, backend: u32, target: &Tuple<A>, role: Role, flags: u8) -> CtEntry<A> {
    CtEntry {
        last_seen: now(),
        service,
        backend,
        src: target.src,
        dst: target.dst,
        sport: target.sport,
        dport: target.dport,
        role: role.0,
        flags,
        tcp_flags: 0,
        pad: 0,
        ifindex: 0,
        ticks: 0,
    }
}

/// Enters a new connection at ingress; returns the tuple to write into its packet.
#[inline(always)]
pub fn create<A: Tables>(
    parsed: &Parsed<A>,
    service: u32,
    choice: &Choice<A>,
) -> Result<Tuple<A>, DropReason> {
    let original = &parsed.tuple;
    let backend = choice.backend;
    // A pod that reaches itself must see a foreign source, else it would answer itself directly.
    let snat = choice.snat || backend.addr == original.src;
    let row_flags = if snat { flags::SNAT } else { 0 };
    let mut target = Tuple { dst: backend.addr, dport: backend.port, ..*original };
    let reply = row(service, choice.id, &original.reversed(), Role::REV_DNAT, row_flags);
    claim_reply(&mut target, &reply)?;
    if snat {
        let pending = row(service, choice.id, &target, Role::SNAT, row_flags | flags::SNAT_PENDING);
        maps::conntrack_put(&CtKey::new(&target, EGRESS), &pending)?;
    }
    let mut forward = row(service, choice.id, &target, Role::DNAT, row_flags);
    forward.tcp_flags = parsed.tcp_flags;
    maps::conntrack_put(&CtKey::new(original, INGRESS), &forward)?;
    Ok(target)
}

/// Enters a connection whose replies do not come back here. Its packets are not rewritten;
/// the returned tuple says where they are sent.
#[inline(always)]
pub fn create_dsr<A: Tables>(
    parsed: &Parsed<A>,
    service: u32,
    choice: &Choice<A>,
) -> Result<Tuple<A>, DropReason> {
    let target = Tuple { dst: choice.backend.addr, dport: choice.backend.port, ..parsed.tuple };
    let mut forward = row(service, choice.id, &target, Role::DSR, 0);
    forward.tcp_flags = parsed.tcp_flags;
    maps::conntrack_put(&CtKey::new(&parsed.tuple, INGRESS), &forward)?;
    Ok(target)
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

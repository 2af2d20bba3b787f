//! Rows of the connection table: find them, keep them alive.

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    Tuple, flow,
    maps::{
        conntrack::{CtEntry, INGRESS, RESOLUTION_NS, Role, Ticks, flags},
        events::Hook,
        tails::Tail,
    },
    packet::Parsed,
};

use super::{direct, lost, over};
use crate::{
    maps::{self, Tables},
    packet::Packet,
};

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
    if !in_driver && flow::ends(parsed.tcp_flags & !entry.tcp_flags) {
        maps::tail_call(packet, if hook == INGRESS { Tail::InEnd } else { Tail::OutEnd });
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

/// True once in each timer tick, for what is not to be done for each packet. Keeps the row alive.
#[inline(always)]
pub fn is_due<A>(entry: &mut CtEntry<A>) -> bool {
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

/// Notes a packet, but for the time, which [`is_due`] does.
#[inline(always)]
pub fn touch<A>(arrival: &Arrival, entry: &mut CtEntry<A>, tcp_flags: u8) {
    entry.packets = entry.packets.wrapping_add(u64::from(arrival.packets));
    entry.bytes = entry.bytes.wrapping_add(u64::from(arrival.bytes));
    let noted = flow::noted(entry.tcp_flags, tcp_flags);
    if noted != entry.tcp_flags {
        entry.tcp_flags = noted;
    }
}

/// Notes the packet that opens a connection in the row that packets like it will match.
#[inline(always)]
pub fn first<A: Tables>(arrival: &Arrival, parsed: &Parsed<A>, row: &mut CtEntry<A>) {
    row.tcp_flags = parsed.tcp_flags;
    row.packets = u64::from(arrival.packets);
    row.bytes = u64::from(arrival.bytes);
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

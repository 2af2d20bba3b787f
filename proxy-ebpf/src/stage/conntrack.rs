//! Rows of the connection table: find them, keep them alive.

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    flow,
    maps::{
        conntrack::{CtEntry, INGRESS, RESOLUTION_NS, Role, Ticks, flags},
        events::Hook,
        tails::Tail,
    },
    packet::Parsed,
};

use super::{direct, lost, over};
use crate::{
    global::global_by_family,
    maps::{self, Room, Row, Tables},
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

/// A copy of the row for the packet that this program has parsed, at `hook`, if it still holds.
///
/// # Errors
/// Under the driver, when the tc program is to see to the rows. That one goes on in another program then, and
/// comes back only if that is missing.
#[inline(always)]
pub fn find<P: Packet, A: Tables>(
    packet: &P,
    arrival: &Arrival,
    hook: u8,
) -> Result<Option<&'static CtEntry<A>>, Unfinished> {
    let in_driver = P::ENTRY.0 == Hook::XDP.0;
    let found = find_in_room::<A>(hook.into(), in_driver.into(), arrival.packets, arrival.bytes);
    let entry = || maps::found().map(|entry| &*entry);
    let [direct, end, lost] = if hook == INGRESS {
        [Tail::InDirect, Tail::InEnd, Tail::InLost]
    } else {
        [Tail::OutDirect, Tail::OutEnd, Tail::OutLost]
    };
    match found {
        NONE => return Ok(None),
        FOUND => return Ok(entry()),
        // There are no others for drivers.
        _ if in_driver => return Err(Unfinished),
        MEETS_ANOTHER => {
            maps::tail_call(packet, direct);
            return Err(Unfinished);
        }
        ENDS => maps::tail_call(packet, end),
        _ => maps::tail_call(packet, lost),
    }
    if found == ANSWERS_ANOTHER { Err(Unfinished) } else { Ok(entry()) }
}

/// There is no row that holds.
const NONE: u32 = 0;
/// There is one, and the packet is noted.
const FOUND: u32 = 1;
/// The tc program is to see to it.
const UNFINISHED: u32 = 2;
/// The packet may belong to a connection that is not ours.
const MEETS_ANOTHER: u32 = 3;
/// The packet may end the connection.
const ENDS: u32 = 4;
/// The packet says that the connection is over, by the answer to another.
const ANSWERS_ANOTHER: u32 = 5;
/// Rows are missing.
const LOST: u32 = 6;

global_by_family! {
    fn find_in_room(hook: u32, in_driver: u32, packets: u32, bytes: u32) = look
        as shunt_find_row4, shunt_find_row6;
    fn follow_in_room(hook: u32, tcp_flags: u32, bytes: u32) = look_next
        as shunt_next_row4, shunt_next_row6;
}

/// Copies the row of the packet in the room there.
#[inline(always)]
fn look<A: Tables>(hook: u32, in_driver: u32, packets: u32, bytes: u32) -> u32 {
    let Some(Room { key, parsed, found: entry, .. }) = maps::room::<A>() else { return UNFINISHED };
    let (hook, in_driver) = (hook as u8, in_driver != 0);
    key.set(&parsed.tuple, hook);
    let Some(row) = maps::conntrack(key, entry) else { return NONE };
    if over::is_over(entry, parsed, key) {
        return NONE;
    }
    if direct::meets_another(entry, parsed, hook, key) {
        return if in_driver { UNFINISHED } else { MEETS_ANOTHER };
    }
    if !in_driver && flow::ends(parsed.tcp_flags & !entry.tcp_flags) {
        return ENDS;
    }
    let answers_another = over::answers_another(entry, parsed, key);
    if answers_another || (is_due(entry) && !lost::is_whole(row, entry, &parsed.tuple, hook, key)) {
        if in_driver {
            return UNFINISHED;
        }
        // What cannot be found again is not looked for until the next tick.
        let seen = entry.tcp_flags;
        keep(row, entry, seen);
        return if answers_another { ANSWERS_ANOTHER } else { LOST };
    }
    touch(packets, bytes, row, entry, parsed.tcp_flags);
    FOUND
}

/// Copies the row that the packet in the room meets next there.
#[inline(always)]
fn look_next<A: Tables>(hook: u32, tcp_flags: u32, bytes: u32) -> u32 {
    let Some(Room { key, step, found: entry, .. }) = maps::room::<A>() else { return UNFINISHED };
    let hook = hook as u8;
    key.set(step, hook);
    let Some(row) = maps::conntrack(key, entry) else { return NONE };
    if is_due(entry) && !lost::is_whole(row, entry, step, hook, key) {
        return UNFINISHED;
    }
    touch(1, bytes, row, entry, tcp_flags as u8);
    FOUND
}

/// True if there is such a row for this packet at ingress, which another program will find again.
#[inline(always)]
pub fn is_known<A: Tables>(parsed: &Parsed<A>, role: Role) -> bool {
    let Some(key) = maps::new_key() else { return false };
    key.set(&parsed.tuple, INGRESS);
    let Some(entry) = maps::found_row(key) else { return false };
    entry.role == role.0 && !over::is_over(entry, parsed, key)
}

/// A copy of the row of the next step of a packet, which the room says, under the driver.
///
/// # Errors
/// When rows of its connection are missing, which the tc program finds again.
#[inline(always)]
pub fn follow<A: Tables>(
    hook: u8,
    tcp_flags: u8,
    bytes: u32,
) -> Result<Option<&'static mut CtEntry<A>>, Unfinished> {
    match follow_in_room::<A>(hook.into(), tcp_flags.into(), bytes) {
        NONE => Ok(None),
        FOUND => Ok(maps::found()),
        _ => Err(Unfinished),
    }
}

/// The kernel's count of timer ticks.
#[inline(always)]
pub fn ticks() -> Ticks {
    // Unlike the clock's, this call is no call: the verifier puts a load in its place.
    // SAFETY: the helper has no preconditions.
    (unsafe { helper::bpf_jiffies64() }) as Ticks
}

/// True until [`touch`] in each timer tick, for what is not to be done for each packet.
#[inline(always)]
fn is_due<A>(entry: &CtEntry<A>) -> bool {
    entry.ticks != ticks()
}

/// Notes packets with these flags that follow the row.
#[inline(always)]
pub fn touch<A: Tables>(packets: u32, bytes: u32, row: Row<A>, entry: &mut CtEntry<A>, tcp_flags: u8) {
    row.count(packets, bytes);
    let noted = flow::noted(entry.tcp_flags, tcp_flags);
    if noted != entry.tcp_flags || is_due(entry) {
        keep(row, entry, noted);
    }
}

/// Keeps the row alive, once in each timer tick, and notes TCP flags.
#[inline(always)]
fn keep<A: Tables>(row: Row<A>, entry: &mut CtEntry<A>, tcp_flags: u8) {
    let (now, mut lasts) = (now(), 0);
    if now.wrapping_sub(entry.last_seen) >= RESOLUTION_NS {
        row.see(now);
        lasts = flags::LASTING;
    }
    let ticks = ticks();
    // If another CPU changes it at the same time, the next packet does it.
    row.change_once(entry, |entry| {
        entry.flags |= lasts;
        (entry.tcp_flags, entry.ticks) = (tcp_flags, ticks);
    });
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
    pub packets: u32,
    pub bytes: u32,
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

//! What a driver remembers of connections whose frames it sends on: what they become, and the next hop.

use aya_ebpf::helpers::generated as helper;
use proxy_common::{
    flow::{ends, noted},
    maps::{
        conntrack::{CtEntry, INGRESS, Role},
        next_hops::{EPOCH_SHIFT, place},
    },
    packet::{
        Bytes as _, Parsed,
        headers::{
            Macs,
            tcp_flags::{FIN, RST, SYN},
        },
    },
    proto,
};

use super::over::backend_is_gone;
use crate::{
    global::global_by_family,
    maps::{self, Room, Tables},
    packet::{Frame, Framing, Packet as _},
};

/// What is remembered of a frame's connection.
#[derive(Clone, Copy, PartialEq)]
pub enum Recalled {
    /// Nothing, or nothing that is good for this frame.
    No,
    /// It goes up.
    Up,
    /// It is sent on, and is counted. The room says what it becomes, and the next hop.
    Sent,
}

/// Since when is remembered what is still good: other numbers come with time, and when routes change.
#[inline(always)]
pub fn epoch() -> u32 {
    // SAFETY: the helper has no preconditions.
    let ticks = (unsafe { helper::bpf_jiffies64() } >> EPOCH_SHIFT) as u32;
    ticks.wrapping_add(maps::routes())
}

/// What becomes of the frame, which this program has parsed and which came in to `macs`.
#[inline(always)]
pub fn recall<F: Framing, A: Tables>(frame: &Frame<F>, macs: &Macs) -> Recalled {
    if maps::parsed::<A>().is_none_or(changes) {
        return Recalled::No;
    }
    let (low, high) = words(macs.dst, F::TAGGED.into());
    match known::<A>(frame.ifindex(), low, high, ip_len(frame)) {
        SENT => Recalled::Sent,
        UP => Recalled::Up,
        _ => Recalled::No,
    }
}

/// In numbers, which functions take: to what link-layer address a frame has come, and whether with a tag.
#[inline(always)]
fn words([a, b, c, d, e, f]: [u8; 6], tagged: u16) -> (u32, u32) {
    let high = u32::from(u16::from_ne_bytes([e, f])) | u32::from(tagged) << 16;
    (u32::from_ne_bytes([a, b, c, d]), high)
}

/// Counts the frame, which this program has parsed and sends on. What it becomes, and the next hop in the room, are good
/// for those that follow, if this was found out in `epoch`.
#[inline(always)]
pub fn remember<F: Framing, A: Tables>(frame: &Frame<F>, epoch: u32) {
    note::<A>(SENT, epoch, ip_len(frame));
}

/// Counts the frame, which this program has parsed and sends on, and which opens a connection. Many have no other.
#[inline(always)]
pub fn count_first<F: Framing, A: Tables>(frame: &Frame<F>) {
    note::<A>(NONE, 0, ip_len(frame));
}

/// The frame, which this program has parsed, goes up, and so do those that follow, if this was found out in `epoch`.
#[inline(always)]
pub fn remember_up<A: Tables>(epoch: u32) {
    note::<A>(UP, epoch, 0);
}

/// Bytes from the IP header on.
#[inline(always)]
pub fn ip_len<F: Framing>(frame: &Frame<F>) -> u32 {
    frame.len().wrapping_sub(F::L2_LEN as u32)
}

const NONE: u32 = 0;
const UP: u32 = 1;
const SENT: u32 = 2;

global_by_family! {
    fn known(ifindex: u32, mac_low: u32, mac_high: u32, bytes: u32) = find_known
        as shunt_known_hop4, shunt_known_hop6;
    fn note(what: u32, epoch: u32, bytes: u32) = note_known as shunt_note_hop4, shunt_note_hop6;
}

/// Whether the packet in the room goes out as its row says, by the next hop in the room.
#[inline(always)]
fn find_known<A: Tables>(ifindex: u32, mac_low: u32, mac_high: u32, bytes: u32) -> u32 {
    let Some(Room { key, parsed, found: entry, step, hop, .. }) = maps::room::<A>() else { return NONE };
    key.set(&parsed.tuple, INGRESS);
    let Some(row) = maps::conntrack(key, entry) else { return NONE };
    if !goes_on(entry, parsed) {
        return NONE;
    }
    let place = place(entry.ifindex);
    if !maps::copy_next_hop(place, hop) || entry.ifindex != entry.out_to(place, hop, epoch()) {
        return NONE;
    }
    if hop.in_ifindex != ifindex || words(hop.own, hop.tagged) != (mac_low, mac_high) {
        return NONE;
    }
    if hop.ifindex == 0 {
        return UP;
    }
    if bytes > hop.mtu.into() || !entry.write_last(parsed.tuple.proto, step) {
        return NONE;
    }
    // The row is kept alive, and looked at for others that are lost, by the first packet of each epoch: where this did
    // it in their place, the tc programs would not look in this timer tick.
    row.count(1, bytes);
    SENT
}

/// True if the packet may change something of its connection, and has to meet all of its rows.
#[inline(always)]
fn changes<A>(parsed: &mut Parsed<A>) -> bool {
    match parsed.tuple.proto {
        proto::TCP => parsed.tcp_flags & (SYN | FIN | RST) != 0,
        proto::UDP => false,
        _ => true,
    }
}

/// True if the packet, which changes nothing by itself, finds nothing changed either.
#[inline(always)]
fn goes_on<A: Tables>(entry: &CtEntry<A>, parsed: &Parsed<A>) -> bool {
    if parsed.tuple.proto == proto::UDP {
        return !Role(entry.role).is_primary() || !backend_is_gone(entry);
    }
    !ends(entry.tcp_flags) && noted(entry.tcp_flags, parsed.tcp_flags) == entry.tcp_flags
}

/// Counts the packet in the room unless it goes up, and notes `what` is known of its connection then.
#[inline(always)]
fn note_known<A: Tables>(what: u32, epoch: u32, bytes: u32) -> u32 {
    let Some(Room { key, parsed, found: entry, step, hop, .. }) = maps::room::<A>() else { return NONE };
    key.set(&parsed.tuple, INGRESS);
    let Some(row) = maps::conntrack(key, entry) else { return NONE };
    if what != UP {
        row.count(1, bytes);
    }
    if what == NONE {
        return NONE;
    }
    let is_named = entry.other_port == step.sport && entry.other_addr == step.src;
    if what == SENT && entry.role == Role::DNAT.0 && entry.has_next() && !is_named {
        // The row learns this by itself, but not before another timer tick.
        row.name_masquerade(entry, step.src, step.sport);
    }
    let place = maps::put_next_hop(hop);
    let mut last = *step;
    if what == UP || (entry.write_last(parsed.tuple.proto, &mut last) && last == *step) {
        row.go_out(entry.out_to(place, hop, epoch));
    }
    what
}

//! Packets in fragments. Only the first fragment has ports; what becomes of it is noted, and
//! the others follow.
//!
//! A fragment that comes before the first of its packet is held if it may be ours. When the
//! first comes, all of them begin anew at the hook they came by, the first before the others.
//!
//! The first's row is written before held ones are looked for, and a held one is stored before
//! the row is looked for again: of two CPUs that do this at once, one sees what the other did,
//! and a held fragment belongs to whoever deletes it.

use proxy_common::{
    DropReason, Tuple,
    maps::{
        conntrack::INGRESS,
        fragments::{Fate, FragmentKey, FragmentRow, HELD_LEN, HeldKey, LIFETIME_NS, MAX_HELD},
    },
    packet::Transport,
    proto,
};

use super::{
    conntrack::now,
    lookup::{fragment_may_enter, fragment_may_leave},
    nat,
    network::Network,
};
use crate::{
    maps::{self, Tables},
    packet::Buffer,
};

/// What may be done with a fragment whose first is not known.
#[derive(Clone, Copy, PartialEq)]
pub enum Early {
    /// It is nobody's business here.
    Pass,
    /// It may be ours but cannot be held.
    Lost,
    /// It is held.
    Held,
    /// The first came meanwhile.
    Known,
}

/// What became of the first fragment of the packet, if it is young enough to be that of this packet.
#[inline(always)]
pub fn find<A: Tables>(key: &FragmentKey<A>) -> Option<&'static FragmentRow<A>> {
    maps::fragment(key).filter(|row| now().wrapping_sub(row.since) < LIFETIME_NS)
}

/// True if fragments of the packet wait for its first.
#[inline(always)]
fn is_awaited<A: Tables>(key: &FragmentKey<A>) -> bool {
    find(key).is_some_and(|row| row.fate == Fate::WAIT.0)
}

/// True if what becomes of the packet is not known.
#[inline(always)]
pub fn is_unknown<A: Tables>(key: &FragmentKey<A>) -> bool {
    find(key).is_none_or(|row| row.fate == Fate::WAIT.0)
}

/// Notes what becomes of the first fragment. True if others wait for it.
#[inline(always)]
pub fn note<A: Tables>(key: &FragmentKey<A>, tuple: &Tuple<A>, fate: Fate, ifindex: u32) -> bool {
    let row =
        FragmentRow { since: now(), src: tuple.src, dst: tuple.dst, ifindex, fate: fate.0, pad: [0; 3] };
    let awaited = match maps::fragment(key) {
        Some(old) => old.fate == Fate::WAIT.0,
        // If the claim fails, others begin to wait at this very moment.
        None if fate != Fate::PASS || may_be_ours(key) => !maps::claim_fragment(key, &row),
        None => return false,
    };
    maps::put_fragment(key, &row);
    awaited
}

/// True if a fragment whose first is not known may be one we translate: it enters with an address
/// that connections enter by, or leaves from or to a backend, or from a host process to a service.
#[inline(always)]
fn may_be_ours<A: Tables>(key: &FragmentKey<A>) -> bool {
    if key.hook == INGRESS { fragment_may_enter(&key.dst) } else { fragment_may_leave(&key.src, &key.dst) }
}

/// Holds a fragment whose first has not come, if it may be ours.
#[inline(always)]
pub fn hold<P: Buffer, A: Network>(packet: &P, fragment: &Transport<A>, key: &FragmentKey<A>) -> Early {
    let translated = matches!(fragment.proto, proto::TCP | proto::UDP | proto::SCTP);
    if !translated || !may_be_ours(key) {
        return Early::Pass;
    }
    let wait = FragmentRow { since: now(), ..FragmentRow::default() };
    if !maps::has_fragment(key) {
        maps::claim_fragment(key, &wait);
    } else if find(key).is_none() {
        maps::put_fragment(key, &wait);
    }
    let Some(place) = store(packet, fragment, key) else { return Early::Lost };
    if is_awaited(key) {
        return Early::Held;
    }
    // Whoever deletes it has it.
    if maps::delete_held(&place) { Early::Known } else { Early::Held }
}

/// Puts the fragment into a free place.
#[inline(always)]
fn store<P: Buffer, A: Network>(
    packet: &P,
    fragment: &Transport<A>,
    key: &FragmentKey<A>,
) -> Option<HeldKey> {
    let len = (fragment.offset - P::L2_LEN) as u32 + fragment.len;
    if len == 0 || len > HELD_LEN as u32 {
        return None;
    }
    let scratch = maps::held_scratch()?;
    packet.copy_out(P::L2_LEN as u32, &mut scratch.bytes, len).ok()?;
    (scratch.since, scratch.ifindex, scratch.len) = (now(), packet.ifindex(), len);
    let turn = maps::take_held_turn()?;
    let mut place = HeldKey::new(key, 0);
    for index in 0..MAX_HELD {
        place.index = index as u8;
        if maps::held(&place).is_none() && maps::claim_held(&place, scratch) {
            // SAFETY: the map keeps it.
            unsafe { (&raw mut (*turn).key).write_volatile(place) };
            return Some(place);
        }
    }
    None
}

/// Lets the first fragment, which this packet is, and those that waited for it begin anew. This
/// packet is of no more use afterwards.
#[inline(always)]
pub fn release<P: Buffer, A: Network>(packet: &P, key: &FragmentKey<A>) {
    let ingress = key.hook == INGRESS;
    packet.send_copy(packet.ifindex(), ingress);
    let mut place = HeldKey::new(key, 0);
    for index in 0..MAX_HELD {
        place.index = index as u8;
        let Some(held) = maps::held(&place) else { continue };
        // SAFETY: a field of the row. Volatile, so that what is checked is what is used.
        let len = unsafe { core::ptr::read_volatile(&raw const held.len) };
        let ifindex = held.ifindex;
        let timely = now().wrapping_sub(held.since) < LIFETIME_NS;
        if timely && packet.replace(P::L2_LEN as u32, &held.bytes, len).is_ok() && maps::delete_held(&place) {
            packet.send_copy(ifindex, ingress);
        }
    }
}

/// Rewrites the addresses of a fragment without ports.
#[inline(always)]
pub fn rewrite<P: Buffer, A: Network>(packet: &P, old: &Tuple<A>, new: &Tuple<A>) -> Result<(), DropReason> {
    let diff = nat::addresses_diff(old, new);
    A::write_addresses(packet, new, diff)?;
    // An IPv4 header's own checksum balances the change.
    if A::VERSION == 6 {
        packet.account(diff);
    }
    Ok(())
}

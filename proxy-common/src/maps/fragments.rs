//! `fragments_v4`, `fragments_v6`: LRU hash, packet in fragments → what became of its first
//! one. Only that has ports; the others do as it did.
//!
//! `held_fragments`: hash, fragments that came before the first one of their packet.
//!
//! `held_turns`: array, places of held fragments in a ring. Who takes the next one drops the fragment whose place it
//! was, if it is still held: the newest are held, on any number of CPUs.

use super::{assert_size, conntrack::Role, pod};
use crate::{
    addr::{Addr, Ip4, Ip6},
    packet::Transport,
};

/// Packets in fragments that are known at a time, per family. The map has more rows: free ones lie with each CPU.
pub const CAPACITY: u32 = 4_096;
/// Fragments that are held at a time, of both families. A row takes 9 KiB.
pub const HELD_CAPACITY: u32 = 384;
/// Fragments of one packet that are held at a time: 64 KiB in fragments of 1,500 bytes.
pub const MAX_HELD: u32 = 48;
/// The largest fragment that is held: a jumbo frame's, with any IP header.
pub const HELD_LEN: usize = 9_216;

/// How long a row counts: as long as the kernel waits for the rest of a packet
/// (`net.ipv4.ipfrag_time`). After that, another packet may have the same identification.
pub const LIFETIME_NS: u64 = 30_000_000_000;

/// A packet of which fragments pass a hook.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FragmentKey<A> {
    /// Source address.
    pub src: A,
    /// Destination address.
    pub dst: A,
    /// Identification.
    pub id: u32,
    /// IANA protocol number; zero for IPv6, where fragments may each tell another.
    pub proto: u8,
    /// As in conntrack.
    pub hook: u8,
    /// Zero.
    pub pad: u16,
}

impl<A: Addr> FragmentKey<A> {
    /// The key of a fragment at `hook`.
    #[inline(always)]
    pub fn new(fragment: &Transport<A>, hook: u8) -> Self {
        Self {
            src: fragment.src,
            dst: fragment.dst,
            id: fragment.fragment_id,
            proto: if A::VERSION == 6 { 0 } else { fragment.proto },
            hook,
            pad: 0,
        }
    }
}

/// What the first fragment became.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FragmentRow<A> {
    /// `CLOCK_MONOTONIC` in nanoseconds when the row was made.
    pub since: u64,
    /// Source address to write.
    pub src: A,
    /// Destination address to write.
    pub dst: A,
    /// For [`Fate::TO_HOST`] the interface that takes it, for [`Fate::FROM_HOST`] the one it leaves by.
    pub ifindex: u32,
    /// A [`Fate`].
    pub fate: u8,
    /// Zero.
    pub pad: [u8; 3],
}

/// What becomes of a packet, and so of all its fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fate(pub u8);

impl Fate {
    /// Not known yet: the first fragment has not come, others are held.
    pub const WAIT: Fate = Fate(0);
    /// It goes on as it came.
    pub const PASS: Fate = Fate(1);
    /// It is rewritten.
    pub const REWRITE: Fate = Fate(2);
    /// It is rewritten, and an interface of this host takes it in.
    pub const TO_HOST: Fate = Fate(3);
    /// It is rewritten, and sent by the backend's route.
    pub const FROM_HOST: Fate = Fate(4);
    /// It is sent to the backend's node inside another.
    pub const ENCAPSULATE: Fate = Fate(5);

    /// Of a packet that matches a row.
    #[inline(always)]
    pub fn of(role: Role) -> Self {
        // Of nearly all packets, which are asked no more then.
        if role.0 <= Role::REV_DNAT.0 {
            return Self::REWRITE;
        }
        match role {
            Role::DSR => Self::ENCAPSULATE,
            Role::LEAVE | Role::PASS => Self::PASS,
            Role::REV_HOST => Self::TO_HOST,
            Role::HOST => Self::FROM_HOST,
            _ => Self::REWRITE,
        }
    }
}

/// Place of one held fragment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeldKey {
    /// Source address; of IPv4 the first four bytes.
    pub src: Ip6,
    /// Destination address; of IPv4 the first four bytes.
    pub dst: Ip6,
    /// Identification.
    pub id: u32,
    /// As in [`FragmentKey`].
    pub proto: u8,
    /// As in [`FragmentKey`].
    pub hook: u8,
    /// 4 or 6.
    pub version: u8,
    /// Below [`MAX_HELD`], in no order.
    pub index: u8,
}

impl HeldKey {
    /// A place for a fragment of the packet with `key`.
    #[inline(always)]
    pub fn new<A: Addr>(key: &FragmentKey<A>, index: u8) -> Self {
        Self {
            src: widen(&key.src),
            dst: widen(&key.dst),
            id: key.id,
            proto: key.proto,
            hook: key.hook,
            version: A::VERSION,
            index,
        }
    }
}

#[inline(always)]
fn widen<A: Addr>(addr: &A) -> Ip6 {
    let words = addr.words();
    let mut wide = Ip6::default();
    for (i, octets) in wide.octets.chunks_exact_mut(4).enumerate() {
        if i < words.len() {
            octets.copy_from_slice(&words[i].to_ne_bytes());
        }
    }
    wide
}

/// A place in the ring of held fragments.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldTurn {
    /// Of the fragment that was held last at this place.
    pub key: HeldKey,
    /// In the first row: places that have been taken so far.
    pub taken: u64,
}

/// A held fragment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeldFragment {
    /// `CLOCK_MONOTONIC` in nanoseconds when it came.
    pub since: u64,
    /// Interface at whose hook it was.
    pub ifindex: u32,
    /// Bytes from the IP header on.
    pub len: u32,
    /// As it came, from the IP header on.
    pub bytes: [u8; HELD_LEN],
}

assert_size!(
    FragmentKey<Ip4> = 16,
    FragmentKey<Ip6> = 40,
    FragmentRow<Ip4> = 24,
    FragmentRow<Ip6> = 48,
    HeldKey = 40,
    HeldTurn = 48,
    HeldFragment = 9232,
);
pod!(FragmentKey<A>, FragmentRow<A>, HeldKey, HeldTurn, HeldFragment);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_both_families_differ() {
        let v4 = FragmentKey { src: Ip4::from([10, 0, 0, 1]), id: 7, ..FragmentKey::default() };
        let key = HeldKey::new(&v4, 3);
        assert_eq!(key.src.octets, [10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let v6 = FragmentKey { src: key.src, id: 7, ..FragmentKey::default() };
        assert_ne!(HeldKey::new(&v6, 3), key);
        assert_eq!(HeldKey::new(&v6, 3).src, key.src);
    }
}

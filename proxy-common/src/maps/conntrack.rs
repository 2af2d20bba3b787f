//! `conntrack_v4`, `conntrack_v6`: hash, tuple seen at a hook → tuple to make of it.
//!
//! A hook asks one question of one table: is there a row for this tuple *here*? The steps of a
//! translated connection are therefore rows of their own:
//!
//! | role | hook | key | becomes |
//! | --- | --- | --- | --- |
//! | `DNAT` | ingress | client → frontend | client → backend |
//! | `SNAT` | egress | client → backend | node → backend |
//! | `REV_SNAT` | ingress | backend → node | backend → client |
//! | `REV_DNAT` | egress | backend → client | frontend → client |
//!
//! A connection without SNAT has only the first and the last. A connection of a host
//! process that went past the socket hooks has two rows that do both steps at once:
//! `HOST` at egress (node → frontend becomes node → backend) and `REV_HOST` at ingress. A
//! connection by direct server return has one row at the node that the client reached, `DSR`
//! at ingress, and `DNAT` and `REV_DNAT` at the node of its backend. A connection that
//! netfilter translates, from before the agent took over, has one row: `LEAVE` at ingress.
//!
//! A connection that is nobody's, to the backend itself, has no rows. If it would meet those of
//! another, it gets another source port, by `DIRECT` at the hook it comes by and `REV_DIRECT` at the
//! other; `PASS` is where its replies come, to keep others from taking its tuple.
//!
//! Each row names all ends of its connection, so that any other one that is lost is made of it
//! (`proxy_common::flow`).

use core::{mem::offset_of, ptr};

use super::{assert_size, pod};
use crate::{
    addr::{Addr, Ip4, Ip6},
    tuple::Tuple,
    weighted_sum::WeightedSum,
};

/// Default number of rows per family.
pub const CAPACITY: u32 = 262_144;

/// [`CtEntry::last_seen`] is written at most once in this time, so that the CPUs of a busy connection do not
/// fight over its cache line.
pub const RESOLUTION_NS: u64 = 1_000_000_000;

/// A packet's tuple, and the hook that saw it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CtKey<A> {
    /// Source address.
    pub src: A,
    /// Destination address.
    pub dst: A,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// IANA protocol number.
    pub proto: u8,
    /// [`INGRESS`] or [`EGRESS`].
    pub hook: u8,
    /// Zero.
    pub pad: u16,
}

/// Packets that enter the host's stack.
pub const INGRESS: u8 = 0;
/// Packets that leave the host's stack.
pub const EGRESS: u8 = 1;

/// The hook that packets of the other direction meet.
#[inline(always)]
pub fn opposite(hook: u8) -> u8 {
    if hook == INGRESS { EGRESS } else { INGRESS }
}

impl<A: Addr> CtKey<A> {
    /// The key of `tuple` at `hook`.
    #[inline(always)]
    pub fn new(tuple: &Tuple<A>, hook: u8) -> Self {
        Self {
            src: tuple.src,
            dst: tuple.dst,
            sport: tuple.sport,
            dport: tuple.dport,
            proto: tuple.proto,
            hook,
            pad: 0,
        }
    }

    /// Makes this the key of `tuple` at `hook`. Field by field: where both addresses are moved as one word,
    /// BPFMIPeephole in LLVM 22 drops the definition of a half that is used once more, and crashes.
    #[inline(always)]
    pub fn set(&mut self, tuple: &Tuple<A>, hook: u8) {
        self.src = tuple.src;
        self.dst = tuple.dst;
        self.sport = tuple.sport;
        self.dport = tuple.dport;
        self.proto = tuple.proto;
        self.hook = hook;
        self.pad = 0;
    }

    /// What a row must say that is found by this key. It follows from all that programs go by and that never changes,
    /// so that one which is read while another takes its place is told from both, whatever is read of which.
    #[inline(always)]
    pub fn check(&self, row: &CtEntry<A>) -> u16 {
        let mut sum = WeightedSum::default();
        // SAFETY: the key has no padding. Neither has the row from its owner to the tuple to write, which begins at a
        // multiple of eight bytes: `OWNER` asserts it.
        unsafe {
            sum.add_all(ptr::from_ref(self).cast(), size_of::<Self>() / size_of::<u64>());
            sum.add_all(
                ptr::from_ref(row).cast::<u64>().add(CtEntry::<A>::OWNER),
                1 + 2 * size_of::<A>() / size_of::<u64>(),
            );
        }
        sum.add(u64::from(row.sport) << 16 | u64::from(row.dport));
        (sum.end() >> 48) as u16
    }

    /// The tuple without the hook.
    #[inline(always)]
    pub fn tuple(&self) -> Tuple<A> {
        Tuple { src: self.src, dst: self.dst, sport: self.sport, dport: self.dport, proto: self.proto }
    }
}

/// What to make of a packet.
///
/// The kernel gives the place of a row that is removed to another at once, also while a program reads it. So programs
/// copy a row and then see whether it is the one that they have asked for ([`is_at`](Self::is_at)). What lies from
/// `role` to `ticks` is one word: they change it only where it is still that of the copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CtEntry<A> {
    /// `CLOCK_MONOTONIC` in nanoseconds when a packet last matched, to about a second ([`RESOLUTION_NS`]).
    pub last_seen: u64,
    /// A [`Role`].
    pub role: u8,
    /// Bits of [`flags`].
    pub flags: u8,
    /// TCP flags seen on this row's packets, or-ed (RFC 9293 §3.1, the low byte).
    pub tcp_flags: u8,
    /// The [`Kind`](super::frontends::Kind) of the frontend.
    pub kind: u8,
    /// Of the key, whose connection it is, and the tuple to write: [`CtKey::check`].
    pub check: u16,
    /// The kernel's count of timer ticks when the row's other rows were last looked at, its low half.
    pub ticks: u16,
    /// Packets that matched, segments of an offloaded one each. Two CPUs may lose some between them.
    pub packets: u64,
    /// Their bytes from the IP header on; a train of segments counts its headers once.
    pub bytes: u64,
    /// Key in `services`.
    pub service: u32,
    /// Key in `backends`.
    pub backend: u32,
    /// Source address to write.
    pub src: A,
    /// Destination address to write.
    pub dst: A,
    /// Source port to write.
    pub sport: u16,
    /// Destination port to write.
    pub dport: u16,
    /// The end of the connection that is neither in the key nor written. Before the masquerade ([`Role::DNAT`],
    /// [`Role::REV_DNAT`]) the source that the backend sees, unspecified while that is not known;
    /// behind the frontend ([`Role::SNAT`], [`Role::REV_SNAT`]) that; else unspecified.
    pub other_addr: A,
    /// Its port; 0 while it is not known.
    pub other_port: u16,
    /// Behind the frontend: the client's own port.
    pub other_client_port: u16,
    /// For [`Role::REV_HOST`]: the interface whose ingress takes the packet. For rows that a driver goes by: where it
    /// sends frames, a place in [`next_hops`](super::next_hops) and a tag. Rows are carried from layout to layout by
    /// this name.
    pub ifindex: u32,
}

/// Timer ticks of the kernel, as many as a row has room for: they go round in a minute at least.
pub type Ticks = u16;

assert_size!(CtKey<Ip4> = 16, CtKey<Ip6> = 40);
assert_size!(CtEntry<Ip4> = 64, CtEntry<Ip6> = 104);
pod!(CtKey<A>, CtEntry<A>);

impl<A: Addr> CtEntry<A> {
    /// In which word service and backend lie.
    const OWNER: usize = {
        let [first, src] = [offset_of!(Self, packets) + 2 * size_of::<u64>(), offset_of!(Self, src)];
        assert!(src == first + size_of::<u64>() && offset_of!(Self, dst) == src + size_of::<A>());
        first / size_of::<u64>()
    };

    /// The tuple to write into packets of `proto`.
    #[inline(always)]
    pub fn target(&self, proto: u8) -> Tuple<A> {
        Tuple { src: self.src, dst: self.dst, sport: self.sport, dport: self.dport, proto }
    }

    /// True if this is a row of `key`, and was whole when it was read: see [`CtKey::check`].
    #[inline(always)]
    pub fn is_at(&self, key: &CtKey<A>) -> bool {
        self.check == key.check(self)
    }

    /// The row as it is entered under `key`.
    #[inline(always)]
    pub fn at(mut self, key: &CtKey<A>) -> Self {
        self.check = key.check(&self);
        self
    }

    /// Sets the tuple to write.
    #[inline(always)]
    pub fn set_target(&mut self, target: &Tuple<A>) {
        self.src = target.src;
        self.dst = target.dst;
        (self.sport, self.dport) = (target.sport, target.dport);
    }
}

/// Bits of [`CtEntry::flags`].
pub mod flags {
    /// The connection is masqueraded.
    pub const SNAT: u8 = 1;
    /// The node address and port are chosen by the first packet that leaves.
    pub const SNAT_PENDING: u8 = 2;
    /// A packet matched a second or more after the row was made: not a mere question
    /// and answer.
    pub const LASTING: u8 = 4;
    /// The first reply may be any segment: late ones may come of a connection that had the tuple before.
    pub const ANY_REPLY: u8 = 8;
}

/// The step of a translation a row stands for; see the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Role(pub u8);

impl Role {
    /// First step of the forward direction.
    pub const DNAT: Role = Role(0);
    /// Second step of the forward direction.
    pub const SNAT: Role = Role(1);
    /// First step of the reply.
    pub const REV_SNAT: Role = Role(2);
    /// Second step of the reply.
    pub const REV_DNAT: Role = Role(3);
    /// Forward direction of a host process.
    pub const HOST: Role = Role(4);
    /// Reply to a host process.
    pub const REV_HOST: Role = Role(5);
    /// Forward direction of a connection whose replies leave from the backend's node (direct
    /// server return): the packet stays as it is and is sent to `dst`, encapsulated.
    pub const DSR: Role = Role(6);

    /// The packet goes on as it came: netfilter translates this connection since before the agent
    /// did. Service and backend are 0.
    pub const LEAVE: Role = Role(7);

    /// The packet goes on as it came: the reply to a connection that nobody translates. Service and
    /// backend are 0.
    pub const PASS: Role = Role(8);
    /// Forward direction of a connection of that kind which met the tuple of one of ours: it has another
    /// source port. Service and backend are 0.
    pub const DIRECT: Role = Role(9);
    /// The reply to it.
    pub const REV_DIRECT: Role = Role(10);

    /// No row has it: the packet is not ours.
    pub const NONE: Role = Role(0xff);
}

#[cfg(test)]
mod tests;

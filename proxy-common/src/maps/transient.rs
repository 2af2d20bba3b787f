//! `transient_v4`, `transient_v6`: array, connections that may be forgotten to make room for others, in
//! three ring buffers ([`Queue`]). Each has a place there from when it opens, and another from when it ends.
//! Who takes the place next, when all others have been taken, removes the connection, unless it is established
//! by then: so half-open and ended ones can be no more than there are places, however many come, and nobody
//! has to look for them.
//!
//! `turns_v4`, `turns_v6`: array of one row, how many places have been taken.

use super::{assert_size, conntrack::CtKey, pod};
use crate::{
    addr::{Ip4, Ip6},
    proto,
};

/// Which connections wait together. One flood does not push out what waits in another queue.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// TCP that has been asked for and is not yet established.
    Opening = 0,
    /// Datagrams and SCTP associations that nothing has followed yet.
    Datagram = 1,
    /// TCP that both sides have closed, or one has reset.
    Ended = 2,
}

impl Queue {
    /// Every one of them.
    pub const ALL: [Self; 3] = [Self::Opening, Self::Datagram, Self::Ended];

    /// Where a connection begins to wait.
    #[inline(always)]
    pub fn of(protocol: u8) -> Self {
        if protocol == proto::TCP { Self::Opening } else { Self::Datagram }
    }

    /// Places of the queue, where `conntrack` has room for so many rows. Masqueraded connections have four: if
    /// all queues are full of them, an eighth of the table is left for connections that last. These take the
    /// rest as they become more, since nobody waits for room.
    #[inline(always)]
    pub const fn places(self, rows: u32) -> u32 {
        let places = match self {
            Self::Opening => rows / 8,
            Self::Datagram => rows / 16,
            Self::Ended => rows / 32,
        };
        if places == 0 { 1 } else { places }
    }

    /// Its first place in the array.
    #[inline(always)]
    pub const fn first(self, rows: u32) -> u32 {
        match self {
            Self::Opening => 0,
            Self::Datagram => Self::Opening.places(rows),
            Self::Ended => Self::Datagram.first(rows) + Self::Datagram.places(rows),
        }
    }
}

/// Places of all queues, where `conntrack` has room for so many rows.
pub const fn capacity(rows: u32) -> u32 {
    Queue::Ended.first(rows) + Queue::Ended.places(rows)
}

/// A place in a queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place<A> {
    /// Of the first row of the connection that waits here, in `conntrack`.
    pub key: CtKey<A>,
    /// `CLOCK_MONOTONIC` in nanoseconds when it began to wait, 0 if nobody does.
    pub since: u64,
}

/// Places that have been taken so far.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// In [`Queue::Opening`].
    pub opening: u64,
    /// In [`Queue::Datagram`].
    pub datagram: u64,
    /// In [`Queue::Ended`].
    pub ended: u64,
}

assert_size!(Place<Ip4> = 24, Place<Ip6> = 48, Turns = 24);
pod!(Place<A>, Turns);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_follow_each_other() {
        for rows in [1, 64, 4096, 262_144, u32::MAX] {
            let mut next = 0;
            for queue in Queue::ALL {
                assert_eq!(queue.first(rows), next, "{queue:?} of {rows}");
                assert!(queue.places(rows) > 0);
                next += queue.places(rows);
            }
            assert_eq!(capacity(rows), next);
        }
    }

    #[test]
    fn full_queues_leave_room() {
        let rows = 262_144;
        assert!(4 * capacity(rows) <= rows / 8 * 7);
    }
}

//! `sweep`: array of one row, how the programs `sweep_v4` and `sweep_v6` are to judge the connections of
//! `conntrack`. The agent writes it and has them run over all rows: they remove the rows of connections that are
//! over, where they lie, and show the agent a [`SweptConnection`] for each connection.

use super::{
    assert_size,
    conntrack::{CtEntry, CtKey, Role},
    counters::{CounterKey, Traffic},
    pod,
    settings::TimeoutSecs,
    stale_ways::Way,
};
use crate::{
    addr::{Addr, Ip4, Ip6},
    flow::{self, Connection},
};

/// How connections are swept.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub now: u64,
    /// After how much silence connections are over.
    pub timeouts: TimeoutSecs,
    /// 1 to remove, and show, only connections of datagrams that go a way of `stale_ways`.
    pub cut: u32,
    /// Zero.
    pub pad: u32,
    /// Rows that have been looked at. Programs count them.
    pub rows: u64,
}

/// A connection as a sweep has found it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptConnection<A> {
    /// What its rows have counted, as [`Traffic`]: high and low half of each, as eight bytes at once would need
    /// padding in one family.
    pub counted: [[u32; 2]; 4],
    /// The way that it goes.
    pub way: Way<A>,
    /// The node address that it is masqueraded behind, if it holds a port of that; else unspecified.
    pub masquerade: A,
    /// IANA protocol number.
    pub proto: u8,
    /// As [`CtEntry::kind`].
    pub kind: u8,
    /// Rows that it has.
    pub rows: u8,
    /// Bits of [`flags`].
    pub flags: u8,
}

/// Bits of [`SweptConnection::flags`].
pub mod flags {
    /// Silent for too long, or ended: its rows are removed.
    pub const OVER: u8 = 1;
    /// It makes room for others where the table is full.
    pub const GIVES_WAY: u8 = 2;
    /// It has its first row, by which it is listed.
    pub const LISTED: u8 = 4;
    /// It is left to netfilter.
    pub const LEFT: u8 = 8;
    /// It holds a port of the node address that it is masqueraded behind.
    pub const HOLDS_PORT: u8 = 16;
}

impl<A: Addr> SweptConnection<A> {
    /// Makes this what is shown of the connection that the row stands for.
    #[inline(always)]
    pub fn set(&mut self, key: &CtKey<A>, row: &CtEntry<A>, connection: &Connection<A>) {
        let role = Role(row.role);
        let Traffic { in_packets, in_bytes, out_packets, out_bytes } = connection.traffic;
        self.counted = [halves(in_packets), halves(in_bytes), halves(out_packets), halves(out_bytes)];
        self.way.set(key, row);
        (self.proto, self.kind, self.rows) = (key.proto, row.kind, connection.rows);
        self.flags = 0;
        if connection.gives_way() {
            self.flags |= flags::GIVES_WAY;
        }
        if role.is_primary() {
            self.flags |= flags::LISTED;
        }
        if role == Role::LEAVE {
            self.flags |= flags::LEFT;
        }
        self.masquerade = A::default();
        if let Some(masquerade) = connection.held_address() {
            self.masquerade = masquerade;
            self.flags |= flags::HOLDS_PORT;
        }
    }

    /// What its rows have counted.
    pub fn traffic(&self) -> Traffic {
        let [in_packets, in_bytes, out_packets, out_bytes] =
            self.counted.map(|[high, low]| u64::from(high) << 32 | u64::from(low));
        Traffic { in_packets, in_bytes, out_packets, out_bytes }
    }

    /// As [`flow::may_be_cut`].
    pub fn may_be_cut(&self) -> bool {
        flow::may_be_cut(self.proto, self.way.service)
    }

    /// Under what it is counted, if a service has it.
    pub fn counter_key(&self) -> Option<CounterKey> {
        let Way { service, backend, .. } = self.way;
        (service != 0).then_some(CounterKey { service, backend, kind: u32::from(self.kind) })
    }
}

#[inline(always)]
fn halves(count: u64) -> [u32; 2] {
    [(count >> 32) as u32, count as u32]
}

assert_size!(Sweep = 56, SweptConnection<Ip4> = 60, SweptConnection<Ip6> = 96);
pod!(Sweep, SweptConnection<A>);

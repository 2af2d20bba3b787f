//! The rows of one connection together: which they are, how far it is, and when it is over.

use super::{TcpState, ends};
use crate::{
    addr::Addr,
    maps::{
        conntrack::{CtEntry, CtKey, Role, flags},
        counters::Traffic,
        settings::TimeoutSecs,
    },
    packet::headers::tcp_flags::ACK,
    proto,
};

/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// The rows of one connection, seen as one. Zeroes are a value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Connection<A> {
    /// When a packet of it was last seen, as [`CtEntry::last_seen`].
    pub last_seen: u64,
    /// What its rows have counted.
    pub traffic: Traffic,
    /// The node address that it is masqueraded behind, if [`MASQUERADED`] says so.
    masquerade: A,
    /// How many rows there are.
    pub rows: u8,
    proto: u8,
    /// The [`Role`] of the row that stands for it.
    role: u8,
    /// TCP flags of the client's packets.
    forward: u8,
    /// TCP flags of the backend's.
    reply: u8,
    /// Bits of any row's [`flags`].
    flags: u8,
    /// What is known of it: bits of [`ANSWERED`], [`PAIR`], [`NEXT`], [`NEXT_PAIR`] and [`MASQUERADED`].
    known: u8,
}

/// The backend has sent something.
const ANSWERED: u8 = 1;
/// There is the row that undoes what the one that stands for it does.
const PAIR: u8 = 2;
/// There is the second step of the forward direction.
const NEXT: u8 = 4;
/// There is the row that undoes that.
const NEXT_PAIR: u8 = 8;
/// It is known behind which node address it is masqueraded.
const MASQUERADED: u8 = 16;

impl<A: Addr> CtEntry<A> {
    /// True for a row of `proto` that a sweep need not look at: it is not the first of its connection, which is TCP and a
    /// service's, and tells by itself that that is not over. `now` is `CLOCK_MONOTONIC` in nanoseconds.
    #[inline(always)]
    pub fn is_passed_over(&self, proto: u8, now: u64, timeouts: &TimeoutSecs) -> bool {
        let seen = self.tcp_flags;
        !Role(self.role).is_primary()
            && proto == proto::TCP
            && self.service != 0
            && seen & ACK != 0
            && !ends(seen)
            && now.saturating_sub(self.last_seen) <= u64::from(timeouts.tcp_established) * SECOND
    }
}

impl<A: Addr> Connection<A> {
    /// The connection that the row stands for, as [`read`](Self::read).
    pub fn of<'r>(
        key: &CtKey<A>,
        row: &CtEntry<A>,
        rows: impl Fn(&CtKey<A>) -> Option<&'r CtEntry<A>>,
    ) -> Option<Self>
    where
        A: 'r,
    {
        let (mut connection, mut other) = (Self::default(), CtKey::default());
        connection.read(key, row, rows, &mut other).then_some(connection)
    }

    /// Makes this the connection that the row stands for: its first one does, and one that has lost that for what is
    /// left of it. False if another row stands for the connection. `rows` is how others are found, `other` room for
    /// their keys: programs have little.
    #[inline(always)]
    pub fn read<'r>(
        &mut self,
        key: &CtKey<A>,
        row: &CtEntry<A>,
        rows: impl Fn(&CtKey<A>) -> Option<&'r CtEntry<A>>,
        other: &mut CtKey<A>,
    ) -> bool
    where
        A: 'r,
    {
        let role = Role(row.role);
        *self = Self { last_seen: row.last_seen, proto: key.proto, role: row.role, ..Self::default() };
        self.add(row);
        if role.is_alone() {
            return true;
        }
        if !role.is_primary() && is_listed(key, row, &rows, other) {
            return false;
        }
        other.set_pair(row, key.proto, key.hook);
        let pair = rows(other);
        if let Some(pair) = pair.filter(|pair| is_pair(key, row, pair)) {
            if role.is_reply() {
                return false;
            }
            self.known |= PAIR;
            self.add(pair);
        }
        match role {
            Role::DNAT if row.has_next() => self.add_next(key, row, rows, other),
            Role::SNAT if self.has(PAIR) => self.set_masquerade(row.src),
            // Nobody knows how far it is.
            Role::REV_SNAT if pair.is_none() => self.set_masquerade(key.dst),
            _ => {}
        }
        true
    }

    /// Adds the rows behind the first one of a masqueraded connection.
    #[inline(always)]
    fn add_next<'r>(
        &mut self,
        key: &CtKey<A>,
        row: &CtEntry<A>,
        rows: impl Fn(&CtKey<A>) -> Option<&'r CtEntry<A>>,
        other: &mut CtKey<A>,
    ) where
        A: 'r,
    {
        other.set_next(row, key.proto);
        let next = rows(other).filter(|next| is_of(row, next, Role::SNAT));
        if let Some(next) = next {
            self.known |= NEXT;
            self.add(next);
        }
        other.set_next_pair(row, next, key.proto);
        let inside = row.target(key.proto);
        let is_pair = |pair: &&CtEntry<A>| is_of(row, pair, Role::REV_SNAT) && pair.undoes(&inside);
        if let Some(pair) = rows(other).filter(is_pair) {
            self.known |= NEXT_PAIR;
            self.add(pair);
            self.set_masquerade(other.dst);
        }
    }

    #[inline(always)]
    fn set_masquerade(&mut self, addr: A) {
        self.masquerade = addr;
        self.known |= MASQUERADED;
    }

    #[inline(always)]
    fn has(&self, known: u8) -> bool {
        self.known & known != 0
    }

    #[inline(always)]
    fn add(&mut self, row: &CtEntry<A>) {
        let last_seen = row.last_seen;
        if last_seen > self.last_seen {
            self.last_seen = last_seen;
        }
        self.rows += 1;
        self.flags |= row.flags;
        self.traffic += row.traffic();
        if Role(row.role).is_reply() {
            self.reply |= row.tcp_flags;
            if row.packets != 0 {
                self.known |= ANSWERED;
            }
        } else {
            self.forward |= row.tcp_flags;
        }
    }

    /// True if it has been silent for too long, or has ended. `now` is `CLOCK_MONOTONIC` in nanoseconds.
    #[inline(always)]
    pub fn is_over(&self, now: u64, timeouts: &TimeoutSecs) -> bool {
        now.saturating_sub(self.last_seen) > u64::from(self.timeout(timeouts)) * SECOND
    }

    /// Seconds of silence after which it is over.
    #[inline(always)]
    pub fn timeout(&self, timeouts: &TimeoutSecs) -> u32 {
        match self.proto {
            proto::TCP => match self.tcp_state() {
                TcpState::Opening | TcpState::Answered => timeouts.tcp_opening,
                TcpState::Established => timeouts.tcp_established,
                TcpState::HalfClosed => timeouts.tcp_half_closed,
                TcpState::Closed => timeouts.tcp_closed.saturating_mul(self.times_closed()),
                TcpState::Reset => timeouts.tcp_reset,
            },
            proto::UDP if self.flags & flags::LASTING != 0 => timeouts.udp_stream,
            proto::UDP => timeouts.udp,
            _ => timeouts.sctp,
        }
    }

    /// How many times as long as others it is kept when it has closed: by default (30 s) for 120 s if one side is not
    /// seen, which may go on, and for 60 s if it holds a source port. Another client's connection that is given the port
    /// is not to meet the TIME-WAIT of a backend that closed first (Linux's `TCP_TIMEWAIT_LEN`).
    #[inline(always)]
    fn times_closed(&self) -> u32 {
        if Role(self.role).is_alone() {
            4
        } else if self.has(MASQUERADED) {
            2
        } else {
            1
        }
    }

    /// True if it makes room for others where the table is full.
    #[inline(always)]
    pub fn gives_way(&self) -> bool {
        match self.proto {
            proto::TCP => {
                let state = self.tcp_state();
                state.has_ended() || state.is_opening()
            }
            proto::UDP => self.flags & flags::LASTING == 0,
            _ => !self.has(ANSWERED),
        }
    }

    #[inline(always)]
    fn tcp_state(&self) -> TcpState {
        if Role(self.role).is_alone() {
            return TcpState::of_client(self.forward);
        }
        TcpState::of(self.forward, self.reply)
    }

    /// The node address of which it holds a port, so that no other connection may have it.
    #[inline(always)]
    pub fn held_address(&self) -> Option<A> {
        let holds = self.has(MASQUERADED) && (self.role == Role::REV_SNAT.0 || !self.gives_way());
        holds.then_some(self.masquerade)
    }

    /// Calls `visit` with the keys of its rows but that by which it was found, as long as they are there. All is as
    /// for [`read`](Self::read).
    #[inline(always)]
    pub fn each_other<'r>(
        &self,
        key: &CtKey<A>,
        row: &CtEntry<A>,
        rows: impl Fn(&CtKey<A>) -> Option<&'r CtEntry<A>>,
        other: &mut CtKey<A>,
        mut visit: impl FnMut(&CtKey<A>),
    ) where
        A: 'r,
    {
        // One that is found by another before that.
        if self.has(NEXT_PAIR) {
            other.set_next(row, key.proto);
            let next = if self.has(NEXT) { rows(other) } else { None };
            other.set_next_pair(row, next, key.proto);
            visit(other);
        }
        if self.has(NEXT) {
            other.set_next(row, key.proto);
            visit(other);
        }
        if self.has(PAIR) {
            other.set_pair(row, key.proto, key.hook);
            visit(other);
        }
    }
}

/// True for a connection that is cut where its way does not lead to the service any more: one of datagrams which a
/// service has.
#[inline(always)]
pub fn may_be_cut(proto: u8, service: u32) -> bool {
    proto == proto::UDP && service != 0
}

/// True if there is the first row of the connection that `row` belongs to, and it leads to that. `first` is room for
/// its key.
#[inline(always)]
fn is_listed<'r, A: Addr>(
    key: &CtKey<A>,
    row: &CtEntry<A>,
    rows: impl Fn(&CtKey<A>) -> Option<&'r CtEntry<A>>,
    first: &mut CtKey<A>,
) -> bool {
    match Role(row.role) {
        Role::SNAT => {
            first.set_original(row, key.src, key.proto);
            let leads_here = |first: &CtEntry<A>| first.has_next() && is_next(first, key);
            rows(first).is_some_and(|first| is_of(row, first, Role::DNAT) && leads_here(first))
        }
        Role::REV_SNAT => {
            first.set_first(row, key.proto);
            let Some(dnat) = rows(first).filter(|first| is_of(row, first, Role::DNAT)) else { return false };
            if !dnat.has_next() {
                return false;
            }
            let mut next = None;
            if dnat.other_port == 0 {
                first.set_next(dnat, key.proto);
                next = rows(first).filter(|next| is_of(row, next, Role::SNAT));
            }
            first.set_next_pair(dnat, next, key.proto);
            *first == *key
        }
        _ => {
            first.set_pair(row, key.proto, key.hook);
            let is_first = |pair: &CtEntry<A>| Role(pair.role).is_primary() && is_pair(key, row, pair);
            rows(first).is_some_and(is_first)
        }
    }
}

/// True if packets that `first` has translated meet the row of this key next.
#[inline(always)]
fn is_next<A: Addr>(first: &CtEntry<A>, key: &CtKey<A>) -> bool {
    first.sport == key.sport && first.dport == key.dport && first.src == key.src && first.dst == key.dst
}

/// True if `pair` undoes what `row` does to packets of this key.
#[inline(always)]
fn is_pair<A: Addr>(key: &CtKey<A>, row: &CtEntry<A>, pair: &CtEntry<A>) -> bool {
    is_of(row, pair, Role(row.role).pair()) && key.is_undone_by(pair)
}

/// True if `other` is a row of that role which may be one of the same connection as `row`: the client's port may have
/// gone to another since.
#[inline(always)]
fn is_of<A>(row: &CtEntry<A>, other: &CtEntry<A>, role: Role) -> bool {
    other.role == role.0 && other.service == row.service && other.backend == row.backend
}

#[cfg(test)]
mod tests;

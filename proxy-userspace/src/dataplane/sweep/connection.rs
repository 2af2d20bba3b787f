//! The rows of one connection together, and when it is over.

use std::{collections::HashMap, time::Duration};

use proxy_common::{
    flow::TcpState,
    maps::conntrack::{CtEntry, CtKey, EGRESS, Role, flags},
    proto,
};

use super::{super::MapAddr, Timeouts};

/// Rows of `conntrack`.
pub(super) type Rows<A> = HashMap<CtKey<A>, CtEntry<A>>;

/// The rows of one connection, as far as they exist.
pub(super) struct Connection<'a, A> {
    proto: u8,
    /// The first one is the primary row, if that exists.
    pub(super) rows: Vec<(&'a CtKey<A>, &'a CtEntry<A>)>,
}

impl<'a, A: MapAddr> Connection<'a, A> {
    /// All rows if `key` is the first one, else just this.
    pub(super) fn of(rows: &'a Rows<A>, key: &'a CtKey<A>, entry: &'a CtEntry<A>) -> Self {
        let mut connection = Self { proto: key.proto, rows: vec![(key, entry)] };
        let mut add = |key: CtKey<A>, role: Role| {
            let (key, other) = rows.get_key_value(&key)?;
            // The client's port may have gone to another connection since.
            let same = (other.role, other.service, other.backend) == (role.0, entry.service, entry.backend);
            same.then(|| connection.rows.push((key, other)))?;
            Some(other)
        };
        add(entry.pair(key.proto, key.hook), Role(entry.role).pair());
        if entry.role == Role::DNAT.0
            && entry.has_next()
            && let Some(snat) = add(entry.next(key.proto), Role::SNAT)
        {
            add(snat.pair(key.proto, EGRESS), Role::REV_SNAT);
        }
        connection
    }

    /// When a packet of it was last seen.
    pub(super) fn last_seen(&self) -> u64 {
        self.rows.iter().map(|(_, entry)| entry.last_seen).max().unwrap_or(0)
    }

    pub(super) fn is_expired(&self, now_ns: u64, timeouts: &Timeouts) -> bool {
        u128::from(now_ns.saturating_sub(self.last_seen())) > self.timeout(timeouts).as_nanos()
    }

    /// Time until it is forgotten if no packet comes.
    fn time_left(&self, now_ns: u64, timeouts: &Timeouts) -> Duration {
        let silent = Duration::from_nanos(now_ns.saturating_sub(self.last_seen()));
        self.timeout(timeouts).saturating_sub(silent)
    }

    fn timeout(&self, timeouts: &Timeouts) -> Duration {
        match self.proto {
            proto::TCP => self.tcp_timeout(timeouts),
            proto::UDP if self.rows.iter().any(|(_, entry)| entry.flags & flags::LASTING != 0) => {
                timeouts.udp_stream
            }
            proto::UDP => timeouts.udp,
            _ => timeouts.sctp,
        }
    }

    fn tcp_timeout(&self, timeouts: &Timeouts) -> Duration {
        match self.tcp_state() {
            TcpState::Opening | TcpState::Answered => timeouts.tcp_opening,
            TcpState::Established => timeouts.tcp_established,
            TcpState::HalfClosed => timeouts.tcp_half_closed,
            TcpState::Closed => timeouts.tcp_closed,
            TcpState::Reset => timeouts.tcp_reset,
        }
    }

    fn tcp_state(&self) -> TcpState {
        let seen = |reply: bool| {
            let rows = self.rows.iter().filter(|(_, entry)| Role(entry.role).is_reply() == reply);
            rows.fold(0, |seen, (_, entry)| seen | entry.tcp_flags)
        };
        match self.rows[..] {
            [(_, only)] if Role(only.role).is_alone() => TcpState::of_client(only.tcp_flags),
            _ => TcpState::of(seen(false), seen(true)),
        }
    }

    /// True if it makes room for others where the table is full.
    pub(super) fn gives_way(&self) -> bool {
        let mut rows = self.rows.iter().map(|(_, entry)| entry);
        match self.proto {
            proto::TCP => {
                let state = self.tcp_state();
                state.has_ended() || state.is_opening()
            }
            proto::UDP => rows.all(|entry| entry.flags & flags::LASTING == 0),
            _ => rows.all(|entry| !Role(entry.role).is_reply() || entry.packets == 0),
        }
    }
}

/// Time until the connection whose first row is this is forgotten if no packet comes. `now_ns`
/// is `CLOCK_MONOTONIC`.
pub fn time_left<A: MapAddr>(
    rows: &HashMap<CtKey<A>, CtEntry<A>>,
    key: &CtKey<A>,
    entry: &CtEntry<A>,
    now_ns: u64,
    timeouts: &Timeouts,
) -> Duration {
    Connection::of(rows, key, entry).time_left(now_ns, timeouts)
}

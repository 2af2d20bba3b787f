//! The rows of one connection together, and when it is over.

use std::{collections::HashMap, time::Duration};

use proxy_common::{
    maps::conntrack::{CtEntry, CtKey, EGRESS, Role, flags},
    proto,
};

use super::{super::MapAddr, Timeouts};

/// Bits of the TCP header's flags (RFC 9293 §3.1).
pub(super) const FIN: u8 = 0x01;
pub(super) const RST: u8 = 0x04;
pub(super) const ACK: u8 = 0x10;

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
        let target = entry.target(key.proto);
        if entry.role == Role::HOST.0 {
            add(entry.pair(key.proto, key.hook), Role::REV_HOST);
        } else if entry.role == Role::DNAT.0 {
            add(entry.pair(key.proto, key.hook), Role::REV_DNAT);
            if entry.flags & flags::SNAT != 0
                && let Some(snat) = add(CtKey::new(&target, EGRESS), Role::SNAT)
            {
                add(snat.pair(key.proto, EGRESS), Role::REV_SNAT);
            }
        } else if entry.role == Role::DIRECT.0 {
            add(entry.pair(key.proto, key.hook), Role::REV_DIRECT);
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
        if let [(_, only)] = self.rows[..]
            && [Role::DSR, Role::LEAVE, Role::PASS].contains(&Role(only.role))
        {
            return one_sided(only.tcp_flags, timeouts);
        }
        let seen = |reply: bool| {
            let rows = self.rows.iter().filter(|(_, entry)| Role(entry.role).is_reply() == reply);
            rows.fold(0, |seen, (_, entry)| seen | entry.tcp_flags)
        };
        let (forward, reply) = (seen(false), seen(true));
        let (either, both) = (forward | reply, forward & reply);
        if either & RST != 0 {
            timeouts.tcp_reset
        } else if both & FIN != 0 {
            timeouts.tcp_closed
        } else if either & FIN != 0 {
            timeouts.tcp_half_closed
        } else if both & ACK != 0 {
            timeouts.tcp_established
        } else {
            timeouts.tcp_opening
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

/// One side is all that is seen of a connection by direct server return, by netfilter, or of nobody. Its
/// first acknowledgement says that the other answered. Its end counts as the end of both: the
/// backend's is not seen, and what the client still sends finds the same backend by hashing.
fn one_sided(forward: u8, timeouts: &Timeouts) -> Duration {
    if forward & RST != 0 {
        timeouts.tcp_reset
    } else if forward & FIN != 0 {
        timeouts.tcp_closed
    } else if forward & ACK != 0 {
        timeouts.tcp_established
    } else {
        timeouts.tcp_opening
    }
}

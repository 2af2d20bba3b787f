//! When a connection holds nothing any more that another may need.

use super::TcpState;
use crate::{
    maps::{
        conntrack::{CtEntry, RESOLUTION_NS, flags},
        transient::Queue,
    },
    proto,
};

impl<A> CtEntry<A> {
    /// True if the connection gives its source port away as soon as another has none: it has ended, or is
    /// not yet one (TCP before the client has acknowledged the answer), or it was a datagram and perhaps
    /// its answer. `self` is the row that packets of `proto` from the client meet, `reply` its pair.
    ///
    /// Netfilter does so with connections that are not `ASSURED`, and those in TCP's closing states.
    #[inline(always)]
    pub fn gives_way(&self, reply: &Self, proto: u8) -> bool {
        match proto {
            proto::TCP => {
                let state = TcpState::of(self.tcp_flags, reply.tcp_flags);
                state.has_ended() || state.is_opening()
            }
            proto::UDP => (self.flags | reply.flags) & flags::LASTING == 0,
            // An association is silent for long between heartbeats.
            _ => reply.packets == 0,
        }
    }

    /// True if the connection is to be forgotten whose place in `queue` somebody else takes. It has waited there
    /// since `since`. `self` is its first row, which packets of `proto` meet, `reply` its pair: none if replies
    /// pass elsewhere, or it is lost.
    ///
    /// The client may have opened another connection by the same port, which waits elsewhere. A row tells when
    /// it was made until it lasts.
    #[inline(always)]
    pub fn is_forgotten(&self, reply: Option<&Self>, proto: u8, queue: Queue, since: u64) -> bool {
        let lasts = self.flags & flags::LASTING != 0;
        if queue == Queue::Ended {
            // Late packets come soon after the end. One that lasts since then has lasted a second.
            let until = if lasts { since.wrapping_add(RESOLUTION_NS - 1) } else { since };
            return self.last_seen <= until && self.has_ended(reply);
        }
        if !lasts && self.last_seen != since {
            return false;
        }
        match proto {
            proto::TCP => self.tcp_state(reply).is_opening(),
            proto::UDP => (self.flags | reply.map_or(0, |reply| reply.flags)) & flags::LASTING == 0,
            _ => reply.is_none_or(|reply| reply.packets == 0),
        }
    }

    /// True if no data will follow on this TCP connection, in no direction. `reply` is as for
    /// [`CtEntry::is_forgotten`].
    #[inline(always)]
    pub fn has_ended(&self, reply: Option<&Self>) -> bool {
        self.tcp_state(reply).has_ended()
    }

    #[inline(always)]
    fn tcp_state(&self, reply: Option<&Self>) -> TcpState {
        match reply {
            Some(reply) => TcpState::of(self.tcp_flags, reply.tcp_flags),
            None => TcpState::of_client(self.tcp_flags),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Ip4,
        packet::headers::tcp_flags::{ACK, FIN, RST, SYN},
    };

    fn row(tcp_flags: u8, flags: u8, packets: u64) -> CtEntry<Ip4> {
        CtEntry { tcp_flags, flags, packets, ..CtEntry::default() }
    }

    fn tcp(forward: u8, reply: u8) -> bool {
        row(forward, 0, 1).gives_way(&row(reply, 0, 1), proto::TCP)
    }

    #[test]
    fn tcp_gives_way_before_it_is_established_and_after_its_end() {
        assert!(tcp(SYN, 0), "unanswered");
        assert!(tcp(SYN, SYN | ACK), "answered");
        assert!(!tcp(SYN | ACK, SYN | ACK), "established");
        assert!(!tcp(SYN | ACK | FIN, SYN | ACK), "half closed");
        assert!(!tcp(SYN | ACK, SYN | ACK | FIN), "half closed by the backend");
        assert!(tcp(SYN | ACK | FIN, SYN | ACK | FIN), "closed");
        assert!(tcp(SYN | ACK | RST, SYN | ACK), "reset");
        assert!(tcp(SYN, ACK | RST), "refused");
    }

    #[test]
    fn datagrams_give_way_unless_they_last() {
        for (forward, reply, expected) in
            [(0, 0, true), (flags::LASTING, 0, false), (0, flags::LASTING, false)]
        {
            assert_eq!(row(0, forward, 1).gives_way(&row(0, reply, 1), proto::UDP), expected);
        }
    }

    #[test]
    fn an_association_gives_way_until_it_is_answered() {
        assert!(row(0, 0, 3).gives_way(&row(0, 0, 0), proto::SCTP));
        assert!(!row(0, 0, 1).gives_way(&row(0, 0, 1), proto::SCTP));
    }

    #[test]
    fn half_open_tcp_is_forgotten_when_its_turn_comes() {
        let forgotten = |forward, reply: Option<u8>| {
            let reply = reply.map(|flags| row(flags, 0, 1));
            row(forward, 0, 1).is_forgotten(reply.as_ref(), proto::TCP, Queue::Opening, 0)
        };
        assert!(forgotten(SYN, Some(0)), "unanswered");
        assert!(forgotten(SYN, Some(SYN | ACK)), "answered");
        assert!(forgotten(SYN, None), "unanswered, for all that is seen here");
        assert!(!forgotten(SYN | ACK, Some(SYN | ACK)), "established");
        assert!(!forgotten(SYN | ACK, None), "established, for all that is seen here");
        assert!(!forgotten(SYN | ACK | FIN, Some(SYN | ACK | FIN)), "it waits among those that have ended");
    }

    #[test]
    fn ended_tcp_is_forgotten_when_its_turn_comes() {
        let forgotten = |forward, reply: Option<u8>| {
            let reply = reply.map(|flags| row(flags, 0, 1));
            row(forward, 0, 1).is_forgotten(reply.as_ref(), proto::TCP, Queue::Ended, 7)
        };
        assert!(forgotten(SYN | ACK | FIN, Some(SYN | ACK | FIN)), "closed");
        assert!(forgotten(SYN | ACK, Some(SYN | ACK | RST)), "reset");
        assert!(forgotten(SYN | ACK | FIN, None), "closed, for all that is seen here");
        assert!(!forgotten(SYN | ACK | FIN, Some(SYN | ACK)), "half closed");
        assert!(!forgotten(SYN, Some(0)), "the client has opened another");
    }

    #[test]
    fn another_connection_by_the_same_port_has_an_end_of_its_own() {
        const END: u64 = 50 * RESOLUTION_NS;
        let forgotten = |last_seen, flags| {
            let row = CtEntry { last_seen, ..row(SYN | ACK | FIN, flags, 5) };
            row.is_forgotten(Some(&row), proto::TCP, Queue::Ended, END)
        };
        assert!(forgotten(END - 7, 0));
        assert!(forgotten(END, 0), "opened and closed in a timer tick");
        assert!(!forgotten(END + 1, 0), "opened later");
        assert!(forgotten(END - 7, flags::LASTING));
        assert!(forgotten(END + RESOLUTION_NS - 1, flags::LASTING), "a late packet");
        assert!(!forgotten(END + RESOLUTION_NS, flags::LASTING), "opened later");
    }

    #[test]
    fn another_connection_by_the_same_port_has_a_place_of_its_own() {
        let opened_at = |last_seen, flags| CtEntry { last_seen, ..row(SYN, flags, 1) };
        let forgotten =
            |row: CtEntry<Ip4>| row.is_forgotten(Some(&CtEntry::default()), proto::TCP, Queue::Opening, 50);
        assert!(forgotten(opened_at(50, 0)));
        assert!(!forgotten(opened_at(90, 0)), "opened later");
        assert!(forgotten(opened_at(90, flags::LASTING)), "asked again");
    }

    #[test]
    fn datagrams_and_associations_are_forgotten_until_more_follows() {
        let forgotten = |proto, forward, reply: CtEntry<Ip4>| {
            row(0, forward, 1).is_forgotten(Some(&reply), proto, Queue::Datagram, 0)
        };
        assert!(forgotten(proto::UDP, 0, row(0, 0, 1)));
        assert!(!forgotten(proto::UDP, flags::LASTING, row(0, 0, 1)));
        assert!(!forgotten(proto::UDP, 0, row(0, flags::LASTING, 1)));
        assert!(forgotten(proto::SCTP, 0, row(0, 0, 0)));
        assert!(!forgotten(proto::SCTP, 0, row(0, 0, 1)));
    }
}

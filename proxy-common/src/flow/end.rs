//! When a connection holds nothing any more that another may need.

use super::TcpState;
use crate::{
    maps::conntrack::{CtEntry, flags},
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
                state.has_ended() || matches!(state, TcpState::Opening | TcpState::Answered)
            }
            proto::UDP => (self.flags | reply.flags) & flags::LASTING == 0,
            // An association is silent for long between heartbeats.
            _ => reply.packets == 0,
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
}

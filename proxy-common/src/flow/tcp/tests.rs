use std::{collections::HashSet, vec::Vec};

use super::*;

/// What both sides have noted of each other's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Seen {
    forward: u8,
    reply: u8,
}

impl Seen {
    fn after(self, is_reply: bool, flags: u8) -> Self {
        if is_reply {
            Self { reply: noted(self.reply, flags), ..self }
        } else {
            Self { forward: noted(self.forward, flags), ..self }
        }
    }

    fn state(self) -> TcpState {
        TcpState::of(self.forward, self.reply)
    }
}

const KINDS: [u8; 7] = [SYN, SYN | ACK, ACK, FIN | ACK, RST, RST | ACK, 0];

/// Everything that any packets in any order lead to.
fn reachable() -> Vec<Seen> {
    let mut known: HashSet<_> = [Seen::default()].into();
    let mut todo: Vec<_> = known.iter().copied().collect();
    while let Some(seen) = todo.pop() {
        for (is_reply, flags) in [false, true].into_iter().flat_map(|reply| KINDS.map(|kind| (reply, kind))) {
            let after = seen.after(is_reply, flags);
            if known.insert(after) {
                todo.push(after);
            }
        }
    }
    known.into_iter().collect()
}

#[test]
fn a_connection_goes_from_state_to_state() {
    let packets = [
        (false, SYN, TcpState::Opening),
        (true, SYN | ACK, TcpState::Answered),
        (false, ACK, TcpState::Established),
        (true, ACK, TcpState::Established),
        (false, FIN | ACK, TcpState::HalfClosed),
        (true, ACK, TcpState::HalfClosed),
        (true, FIN | ACK, TcpState::Closed),
        (false, ACK, TcpState::Closed),
    ];
    let mut seen = Seen::default();
    for (is_reply, flags, state) in packets {
        seen = seen.after(is_reply, flags);
        assert_eq!(seen.state(), state, "{flags:#x}");
    }
}

/// Whatever came before: a reset that its sender did not send, or the other did not take, changes
/// nothing once the sender goes on.
#[test]
fn a_reset_that_nobody_heeds_ends_nothing() {
    for seen in reachable() {
        for is_reply in [false, true] {
            let without = seen.after(is_reply, ACK);
            let reset = seen.after(is_reply, RST);
            assert_eq!(reset.state(), TcpState::Reset);
            assert_eq!(reset.after(is_reply, ACK), without, "{seen:?}");
        }
    }
}

/// Only packets that end a connection take it from where it is established.
#[test]
fn an_established_connection_stays_so_until_one_side_ends_it() {
    for seen in reachable().into_iter().filter(|seen| seen.state() == TcpState::Established) {
        for (is_reply, flags) in [false, true].into_iter().flat_map(|reply| KINDS.map(|kind| (reply, kind))) {
            let state = seen.after(is_reply, flags).state();
            assert_eq!(state == TcpState::Established, !ends(flags), "{seen:?}, {flags:#x}");
        }
    }
}

#[test]
fn nothing_but_a_later_packet_of_the_same_side_undoes_an_end() {
    for seen in reachable().into_iter().filter(|seen| seen.state().has_ended()) {
        for flags in KINDS {
            let (client, backend) = (seen.after(false, flags), seen.after(true, flags));
            assert!(client.state().has_ended() || !ends(seen.reply & RST) && flags & RST == 0, "{seen:?}");
            assert!(backend.state().has_ended() || !ends(seen.forward & RST) && flags & RST == 0, "{seen:?}");
        }
        if seen.state() == TcpState::Closed {
            assert!(KINDS.iter().all(|flags| seen.after(true, *flags).state().has_ended()));
        }
    }
}

#[test]
fn the_client_alone_tells_as_much_as_it_can() {
    let states = [SYN, SYN | ACK, SYN | ACK | FIN, SYN | RST].map(TcpState::of_client);
    assert_eq!(states, [TcpState::Opening, TcpState::Established, TcpState::Closed, TcpState::Reset]);
}

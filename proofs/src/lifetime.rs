//! An established connection is not forgotten before its time, whatever packets come, in whatever order.
//!
//! By induction over packets: a packet leads from what has been noted before, which may be anything, to what is noted
//! then. What is concluded of a connection depends on that alone, and on the times of its rows.

use core::cell::Cell;

use proxy_common::{
    Addr, Ip4, Ip6,
    flow::{Connection, TcpState, noted},
    maps::{
        conntrack::{CtEntry, CtKey, Role, flags},
        settings::TimeoutSecs,
        transient::Queue,
    },
    packet::headers::tcp_flags::{ACK, FIN, RST},
    proto,
};

use crate::symbolic::{Plain, any, any_bool, assume, proofs};

const SECOND: u64 = 1_000_000_000;

/// Both sides have acknowledged, and data may follow in at least one direction.
#[inline(always)]
fn is_alive(state: TcpState) -> bool {
    matches!(state, TcpState::Established | TcpState::HalfClosed)
}

/// A TCP row that has seen an acknowledgement and no end.
#[inline(always)]
fn is_open(tcp_flags: u8) -> bool {
    tcp_flags & (ACK | FIN | RST) == ACK
}

/// Which rows there are beside the first one and its pair.
#[derive(Clone, Copy)]
enum Beside {
    /// None, whatever the row says.
    Nothing,
    /// Some row where the masquerade's would be.
    Second,
    /// Some row where the pair of that would be.
    PairOfSecond,
}

/// The connection of a first row, its pair, and what is found beside them, none of which has seen an end.
#[inline(always)]
fn lasts<A: Addr + Plain>(beside: Beside) {
    let (key, row): (CtKey<A>, CtEntry<A>) = (any("key"), any("first row"));
    let others: [CtEntry<A>; 2] = [any("pair"), any("another row")];
    let found = [matches!(beside, Beside::Second), matches!(beside, Beside::PairOfSecond)];
    let timeouts: TimeoutSecs = any("timeouts");
    // Without branches, each of which the prover would follow.
    let is_first = (row.role == Role::DNAT.0) | (row.role == Role::HOST.0) | (row.role == Role::DIRECT.0);
    assume((key.proto == proto::TCP) & is_first & is_open(row.tcp_flags));
    let seen = others[0].tcp_flags | others[1].tcp_flags;
    // The pair is there, is the row's, and has seen an acknowledgement.
    let pair = &others[0];
    assume((seen & (FIN | RST) == 0) & (pair.tcp_flags & ACK != 0) & (pair.role == Role(row.role).pair().0));
    assume((pair.service == row.service) & (pair.backend == row.backend));
    assume(key.is_undone_by(pair));

    // The pair is looked up first, then the second row, then that one's pair.
    let asked = Cell::new(0);
    let rows = |_: &CtKey<A>| {
        let nth = asked.replace(asked.get() + 1);
        let is_there = nth == 0 || found[nth - 1];
        is_there.then_some(&others[nth.min(1)])
    };
    let (mut connection, mut room) = (Connection::default(), any("room for a key"));
    assert!(connection.read(&key, &row, rows, &mut room));
    assert!(!connection.gives_way());
    assert!(connection.timeout(&timeouts) == timeouts.tcp_established);
    // How these two make it over shows `established_connection_of_a_client_lasts`.
    assert!((connection.last_seen >= row.last_seen) & (connection.last_seen >= pair.last_seen));
}

/// A connection of which the client's packets alone are seen here.
#[inline(always)]
fn lasts_alone<A: Addr + Plain>() {
    let (key, row): (CtKey<A>, CtEntry<A>) = (any("key"), any("row"));
    let (timeouts, now): (TimeoutSecs, u64) = (any("timeouts"), any("now"));
    assume(key.proto == proto::TCP && Role(row.role).is_alone() && is_open(row.tcp_flags));
    let (mut connection, mut room) = (Connection::default(), any("room for a key"));
    assert!(connection.read(&key, &row, |_| None, &mut room));
    assert!(!connection.gives_way());
    let limit = u64::from(timeouts.tcp_established) * SECOND;
    assert!(connection.is_over(now, &timeouts) == (now > row.last_seen && now - row.last_seen > limit));
}

#[inline(always)]
fn any_queue() -> Queue {
    Queue::ALL[usize::from(any::<u8>("queue") % 3)]
}

proofs! {
    /// What is noted of a side is every flag that it has ever sent; of RST only that of its last packet.
    fn noted_is_history() {
        let (seen, flags): (u8, u8) = (any("noted"), any("flags"));
        let after = noted(seen, flags);
        assert!(after & !RST == (seen | flags) & !RST);
        assert!(after & RST == flags & RST);
    }

    /// TCP where both sides are seen: once both have acknowledged, it stays open until a packet with RST comes, or a FIN
    /// from one side after that of the other. A RST that its sender goes on after has changed nothing.
    fn established_tcp_stays_open() {
        let (forward, reply, flags): (u8, u8, u8) = (any("noted of client"), any("noted of backend"), any("flags"));
        let is_reply = any_bool("packet is the backend's");
        let (own, other) = if is_reply { (reply, forward) } else { (forward, reply) };
        let state = |own: u8| if is_reply { TcpState::of(other, own) } else { TcpState::of(own, other) };
        let is_end = flags & RST != 0 || flags & FIN != 0 && other & FIN != 0;
        if forward & reply & ACK != 0 && (forward | reply) & RST == 0 && forward & reply & FIN == 0 {
            assert!(is_alive(state(own)));
        }
        if is_alive(state(own)) {
            assert!(is_end || is_alive(state(noted(own, flags))));
            let without: u8 = any("flags of the next packet");
            assume(without & RST == 0);
            let reset = noted(noted(own, RST), without);
            assert!(reset == noted(own, without));
        }
    }

    /// TCP where only the client is seen (direct server return): once it has acknowledged, it stays open until it sends FIN
    /// or RST.
    fn established_tcp_of_a_client_stays_open() {
        let (seen, flags): (u8, u8) = (any("noted of client"), any("flags"));
        if is_open(seen) {
            assert!(TcpState::of_client(seen) == TcpState::Established);
            assert!(flags & (FIN | RST) != 0 || TcpState::of_client(noted(seen, flags)) == TcpState::Established);
        }
    }

    /// A TCP connection that is open gives its port or its place to nobody: neither where ports are short, nor in a queue,
    /// whenever it came there.
    fn open_tcp_gives_way_to_nobody() {
        let (row, reply): (CtEntry<Ip4>, CtEntry<Ip4>) = (any("row"), any("pair"));
        let since: u64 = any("since");
        assume(is_alive(TcpState::of(row.tcp_flags, reply.tcp_flags)));
        assert!(!row.gives_way(&reply, proto::TCP));
        assert!(!row.is_forgotten(Some(&reply), proto::TCP, any_queue(), since));
    }

    /// So does one whose client alone is seen, and has acknowledged.
    fn open_tcp_of_a_client_gives_way_to_nobody() {
        let (row, since): (CtEntry<Ip4>, u64) = (any("row"), any("since"));
        assume(is_open(row.tcp_flags));
        assert!(!row.is_forgotten(None, proto::TCP, any_queue(), since));
    }

    /// Datagrams that have lasted a second, and associations that were answered, give way to nobody either.
    fn lasting_datagrams_give_way_to_nobody() {
        let (row, reply): (CtEntry<Ip4>, CtEntry<Ip4>) = (any("row"), any("pair"));
        let since: u64 = any("since");
        if (row.flags | reply.flags) & flags::LASTING != 0 {
            assert!(!row.gives_way(&reply, proto::UDP));
            assert!(!row.is_forgotten(Some(&reply), proto::UDP, Queue::Datagram, since));
        }
        if reply.packets != 0 {
            assert!(!row.gives_way(&reply, proto::SCTP));
            assert!(!row.is_forgotten(Some(&reply), proto::SCTP, Queue::Datagram, since));
        }
    }

    /// The sweep, IPv4: a connection whose first row and whose pair have seen an acknowledgement, and whose rows no end,
    /// has the timeout of established ones, from when the later of the two was seen. It makes room for nobody.
    /// Assumes: both rows are there, and no others. Any times and timeouts.
    fn established_connection_lasts_v4() {
        lasts::<Ip4>(Beside::Nothing);
    }

    /// The same for IPv6.
    fn established_connection_lasts_v6() {
        lasts::<Ip6>(Beside::Nothing);
    }

    /// The same, IPv4, with any row where the second one of a masqueraded connection would be: its own or another's.
    fn established_connection_lasts_beside_second() {
        lasts::<Ip4>(Beside::Second);
    }

    /// The same with any row where the pair of the second one would be.
    fn established_connection_lasts_beside_pair_of_second() {
        lasts::<Ip4>(Beside::PairOfSecond);
    }

    /// So for one whose client alone is seen: it is over exactly then. IPv4 and IPv6.
    fn established_connection_of_a_client_lasts() {
        if any_bool("IPv6") { lasts_alone::<Ip6>() } else { lasts_alone::<Ip4>() }
    }

    /// A TCP row of a service that has lost its first one, has seen an acknowledgement and no end, is passed over by the
    /// sweep until it has been silent for longer than the timeout of established ones.
    fn established_row_alone_lasts() {
        let (row, timeouts, now): (CtEntry<Ip4>, TimeoutSecs, u64) = (any("row"), any("timeouts"), any("now"));
        assume(!Role(row.role).is_primary() && row.service != 0 && is_open(row.tcp_flags));
        let limit = u64::from(timeouts.tcp_established) * SECOND;
        let is_silent = now > row.last_seen && now - row.last_seen > limit;
        assert!(row.is_passed_over(proto::TCP, now, &timeouts) != is_silent);
    }
}

//! `shunt conn list`: the connections whose packets are rewritten.

use std::net::SocketAddr;

use proxy_common::{
    maps::conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, flags},
    proto,
};
use serde::Serialize;

use super::rows::{Names, Rows, ShownAddr, socket};

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnView {
    /// Namespace, name and port name of the service.
    pub service: String,
    /// Key in the map `services`.
    pub service_id: u32,
    /// TCP, UDP or SCTP.
    pub protocol: &'static str,
    /// Who opened it.
    pub client: SocketAddr,
    /// The address it was opened to.
    pub frontend: SocketAddr,
    /// Who answers.
    pub backend: SocketAddr,
    /// The source the backend sees, where that is not the client.
    pub snat: Option<SocketAddr>,
    /// The backend's own node answers (DSR): only the client's packets pass here.
    pub direct_return: bool,
    /// State of a TCP connection, as far as its packets tell.
    pub state: Option<TcpState>,
    /// Seconds since the last packet of either direction.
    pub idle_seconds: u64,
}

/// State of a TCP connection, as far as the flags of its packets tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TcpState {
    /// The client asked.
    SynSent,
    /// The backend answered.
    SynRecv,
    /// Data may flow.
    Established,
    /// One side is done.
    Closing,
    /// Both sides are done.
    Closed,
    /// One side broke it off.
    Reset,
}

impl TcpState {
    /// The word in the table.
    pub fn name(self) -> &'static str {
        match self {
            TcpState::SynSent => "SYN_SENT",
            TcpState::SynRecv => "SYN_RECV",
            TcpState::Established => "ESTABLISHED",
            TcpState::Closing => "CLOSING",
            TcpState::Closed => "CLOSED",
            TcpState::Reset => "RESET",
        }
    }

    /// From the flags of the client's packets: its first acknowledgement tells of the answer.
    fn of_client(forward: u8) -> Self {
        const ACK: u8 = 16;
        const SYN: u8 = 2;
        let reply = if forward & ACK != 0 { SYN | ACK } else { 0 };
        Self::of(forward, reply)
    }

    /// From the flags of all packets of each direction.
    fn of(forward: u8, reply: u8) -> Self {
        const FIN: u8 = 1;
        const SYN: u8 = 2;
        const RST: u8 = 4;
        const ACK: u8 = 16;
        let both = |flag| forward & reply & flag != 0;
        let either = |flag| (forward | reply) & flag != 0;
        if either(RST) {
            TcpState::Reset
        } else if both(FIN) {
            TcpState::Closed
        } else if either(FIN) {
            TcpState::Closing
        } else if forward & SYN != 0 && reply & SYN == 0 && reply & ACK == 0 {
            TcpState::SynSent
        } else if both(SYN) && forward & ACK == 0 {
            TcpState::SynRecv
        } else {
            TcpState::Established
        }
    }
}

/// All connections of a family. `now` is the clock of the rows, in nanoseconds.
pub fn connections<A: ShownAddr>(rows: &Rows<A>, names: &Names, now: u64) -> Vec<ConnView> {
    let primary = rows.conntrack.iter().filter(|(_, entry)| Role(entry.role).is_primary());
    primary.map(|(key, entry)| connection(rows, names, now, key, entry)).collect()
}

/// The order in which they are shown.
pub fn sort(views: &mut [ConnView]) {
    views.sort_by(|a, b| (&a.service, a.protocol, a.client).cmp(&(&b.service, b.protocol, b.client)));
}

/// True unless the flags say that the connection has ended.
pub(super) fn is_open<A: ShownAddr>(rows: &Rows<A>, key: &CtKey<A>, entry: &CtEntry<A>) -> bool {
    !matches!(state(rows, key, entry), Some(TcpState::Closed | TcpState::Reset))
}

fn connection<A: ShownAddr>(
    rows: &Rows<A>,
    names: &Names,
    now: u64,
    key: &CtKey<A>,
    entry: &CtEntry<A>,
) -> ConnView {
    let client = socket(key.src, key.sport);
    let last_seen = reply(rows, key, entry).map_or(0, |r| r.last_seen).max(entry.last_seen);
    ConnView {
        service: names.of(entry.service),
        service_id: entry.service,
        protocol: proto::name(key.proto).unwrap_or("any"),
        client,
        frontend: socket(key.dst, key.dport),
        backend: socket(entry.dst, entry.dport),
        snat: source_at_backend(rows, key, entry).filter(|source| *source != client),
        direct_return: entry.role == Role::DSR.0,
        state: state(rows, key, entry),
        idle_seconds: now.saturating_sub(last_seen) / 1_000_000_000,
    }
}

fn state<A: ShownAddr>(rows: &Rows<A>, key: &CtKey<A>, entry: &CtEntry<A>) -> Option<TcpState> {
    let of = |reply| match entry.role {
        role if role == Role::DSR.0 => TcpState::of_client(entry.tcp_flags),
        _ => TcpState::of(entry.tcp_flags, reply),
    };
    (key.proto == proto::TCP).then(|| of(reply(rows, key, entry).map_or(0, |r| r.tcp_flags)))
}

/// The row of the reply's last step, if it comes by here.
fn reply<'a, A: ShownAddr>(rows: &'a Rows<A>, key: &CtKey<A>, entry: &CtEntry<A>) -> Option<&'a CtEntry<A>> {
    if entry.role == Role::DSR.0 {
        return None;
    }
    let hook = if entry.role == Role::HOST.0 { INGRESS } else { EGRESS };
    rows.conntrack.get(&CtKey::new(&entry.target(key.proto).reversed(), hook))
}

/// The source the backend sees; nothing while it is not chosen yet.
fn source_at_backend<A: ShownAddr>(rows: &Rows<A>, key: &CtKey<A>, entry: &CtEntry<A>) -> Option<SocketAddr> {
    if entry.role != Role::DNAT.0 || entry.flags & flags::SNAT == 0 {
        return Some(socket(entry.src, entry.sport));
    }
    let second = rows.conntrack.get(&CtKey::new(&entry.target(key.proto), EGRESS))?;
    (second.flags & flags::SNAT_PENDING == 0).then(|| socket(second.src, second.sport))
}

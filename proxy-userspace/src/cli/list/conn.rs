//! `shunt conn list`: the connections whose packets are rewritten.

use std::{collections::HashMap, net::SocketAddr, path::Path, time::Duration};

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use proxy_common::{
    flow,
    maps::{
        conntrack::{CtEntry, CtKey, Role, flags},
        frontends::FrontendKey,
    },
    proto,
};
use serde::Serialize;

use super::{
    ListArgs, Listed, Stored,
    column::{Column, Shown, Value},
    filter::{Facets, Where},
};
use crate::{
    cli::rows::{Names, Rows, Tables, socket},
    dataplane::{MapAddr, Timeouts},
    model::Family,
};

/// `shunt conn`
#[derive(Debug, Subcommand)]
pub enum ConnCommand {
    /// Show the connections whose packets are rewritten.
    ///
    /// Connections that socket LB translated when they were opened need no tracking and are not listed.
    /// Those of role leave belong to netfilter, from before the agent took over; those of role direct
    /// were opened to a backend itself, and got another source port, as their own was taken. SNAT is the
    /// source that the backend sees, where that is not the client. EXPIRES is the time after which the
    /// connection is forgotten if no packet comes.
    #[command(after_help = EXAMPLES)]
    List(ListArgs<ConnView>),
}

const EXAMPLES: &str = "Examples:
  shunt conn list
  shunt conn list --service shop/web --state ESTABLISHED --sort idle
  shunt conn list --address 10.244.1.0/24 --protocol udp -o wide
  shunt conn list -o json | jq length";

/// Which connections.
#[derive(Debug, Default, Args)]
pub struct ConnFilter {
    /// By what all lists have.
    #[command(flatten)]
    pub at: Where,
    /// Only TCP connections in this state.
    #[arg(long, ignore_case = true, help_heading = "Filters")]
    pub state: Option<TcpState>,
    /// Only connections that are masqueraded.
    #[arg(long, help_heading = "Filters")]
    pub snat: bool,
}

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
    /// Who answers; unknown of connections that netfilter translates.
    pub backend: Option<SocketAddr>,
    /// The way its packets go: `dnat`, `host` for a process of this node that went past socket LB,
    /// `dsr`; `leave`: to netfilter, which translates it since before the agent did; or `direct`: to
    /// the backend itself, by another source port.
    pub role: &'static str,
    /// The source the backend sees, where that is not the client.
    pub snat: Option<SocketAddr>,
    /// The backend's own node answers (DSR): only the client's packets pass here.
    pub direct_return: bool,
    /// State of a TCP connection, as far as its packets tell.
    pub state: Option<TcpState>,
    /// Seconds since the last packet of either direction.
    pub idle_seconds: u64,
    /// Seconds until it is forgotten if no packet comes; 0 if that is due.
    pub expires_seconds: u64,
    /// Packets from the client.
    pub in_packets: u64,
    /// Packets to the client, as far as they pass here.
    pub out_packets: u64,
    /// Bytes from the client.
    pub in_bytes: u64,
    /// Bytes to the client.
    pub out_bytes: u64,
}

/// State of a TCP connection, as far as the flags of its packets tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
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
}

impl From<flow::TcpState> for TcpState {
    fn from(state: flow::TcpState) -> Self {
        match state {
            flow::TcpState::Opening => TcpState::SynSent,
            flow::TcpState::Answered => TcpState::SynRecv,
            flow::TcpState::Established => TcpState::Established,
            flow::TcpState::HalfClosed => TcpState::Closing,
            flow::TcpState::Closed => TcpState::Closed,
            flow::TcpState::Reset => TcpState::Reset,
        }
    }
}

impl Listed for ConnView {
    type Filter = ConnFilter;

    const COLUMNS: &'static [Column<Self>] = &[
        Column { name: "SERVICE", shown: Shown::Always, value: |v| v.service.as_str().into() },
        Column { name: "PROTO", shown: Shown::Always, value: |v| v.protocol.into() },
        Column { name: "CLIENT", shown: Shown::Always, value: |v| Value::Socket(v.client) },
        Column { name: "FRONTEND", shown: Shown::Always, value: |v| Value::Socket(v.frontend) },
        Column { name: "BACKEND", shown: Shown::Always, value: |v| Value::socket(v.backend) },
        Column { name: "SNAT", shown: Shown::Always, value: snat },
        Column { name: "STATE", shown: Shown::Always, value: |v| v.state.map_or("", TcpState::name).into() },
        Column { name: "IDLE", shown: Shown::Always, value: |v| Value::Seconds(v.idle_seconds) },
        Column { name: "EXPIRES", shown: Shown::Always, value: |v| Value::Seconds(v.expires_seconds) },
        Column { name: "ROLE", shown: Shown::Wide, value: |v| v.role.into() },
        Column { name: "INPKTS", shown: Shown::Wide, value: |v| v.in_packets.into() },
        Column { name: "OUTPKTS", shown: Shown::Wide, value: |v| v.out_packets.into() },
        Column { name: "INBYTES", shown: Shown::Wide, value: |v| v.in_bytes.into() },
        Column { name: "OUTBYTES", shown: Shown::Wide, value: |v| v.out_bytes.into() },
    ];

    fn is_wanted(&self, filter: &ConnFilter) -> bool {
        let ends = [Some(self.client), Some(self.frontend), self.backend, self.snat];
        let ends = || ends.iter().flatten();
        let facets = Facets {
            services: vec![&self.service],
            addresses: ends().map(SocketAddr::ip).collect(),
            ports: ends().map(SocketAddr::port).collect(),
            protocol: Some(self.protocol),
            family: Family::of(self.client.ip()).name(),
        };
        filter.at.admits(&facets)
            && filter.state.is_none_or(|state| self.state == Some(state))
            && (!filter.snat || self.snat.is_some())
    }
}

impl Stored for ConnView {
    fn read(bpffs: &Path, filter: &ConnFilter) -> Result<Vec<Self>> {
        let tables = Tables::read(bpffs, filter.at.numeric)?;
        let clock = Clock { now: tables.now, timeouts: tables.timeouts };
        let mut views = connections(&tables.v4, &tables.names, &clock);
        views.extend(connections(&tables.v6, &tables.names, &clock));
        sort(&mut views);
        Ok(views)
    }
}

/// The source the backend sees.
fn snat(view: &ConnView) -> Value {
    match view.snat {
        None if view.direct_return => "dsr".into(),
        snat => Value::socket(snat),
    }
}

/// By which rows tell time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub now: u64,
    /// After how much silence the agent forgets a connection.
    pub timeouts: Timeouts,
}

/// All connections of a family.
pub fn connections<A: MapAddr>(rows: &Rows<A>, names: &Names, clock: &Clock) -> Vec<ConnView> {
    let is_listed = |role: Role| role.is_primary() || role == Role::LEAVE;
    let listed = rows.conntrack.iter().filter(|(_, entry)| is_listed(Role(entry.role)));
    listed.map(|(key, entry)| connection(rows, names, clock, key, entry)).collect()
}

/// The order in which they are shown.
pub fn sort(views: &mut [ConnView]) {
    views.sort_by(|a, b| (&a.service, a.protocol, a.client).cmp(&(&b.service, b.protocol, b.client)));
}

/// Open connections, by the frontend they came in by and the backend they go to.
pub fn open_connections<A: MapAddr>(rows: &Rows<A>) -> HashMap<(FrontendKey<A>, u32), u64> {
    let known = rows.frontends.iter().map(|(key, _)| *key).collect();
    let mut counts = HashMap::new();
    for (key, entry) in rows.conntrack.iter().filter(|(_, entry)| Role(entry.role).is_primary()) {
        if is_open(rows, key, entry) {
            *counts.entry((rows.frontend_of(&known, key), entry.backend)).or_default() += 1;
        }
    }
    counts
}

/// True unless the flags say that the connection has ended.
pub(in crate::cli) fn is_open<A: MapAddr>(rows: &Rows<A>, key: &CtKey<A>, entry: &CtEntry<A>) -> bool {
    !matches!(state(rows, key, entry), Some(TcpState::Closed | TcpState::Reset))
}

fn connection<A: MapAddr>(
    rows: &Rows<A>,
    names: &Names,
    clock: &Clock,
    key: &CtKey<A>,
    entry: &CtEntry<A>,
) -> ConnView {
    let client = socket(key.src, key.sport);
    let left = entry.role == Role::LEAVE.0;
    let whole = flow::Connection::of(key, entry, |key| rows.conntrack.get(key));
    let last_seen = whole.as_ref().map_or(entry.last_seen, |whole| whole.last_seen);
    let traffic = whole.as_ref().map(|whole| whole.traffic).unwrap_or_default();
    ConnView {
        service: if entry.service == 0 { String::new() } else { names.of(entry.service) },
        service_id: entry.service,
        protocol: proto::name(key.proto).unwrap_or("any"),
        client,
        frontend: socket(key.dst, key.dport),
        backend: (!left).then(|| socket(entry.dst, entry.dport)),
        role: role(entry),
        snat: source_at_backend(rows, key, entry).filter(|source| !left && *source != client),
        direct_return: entry.role == Role::DSR.0,
        state: state(rows, key, entry),
        idle_seconds: clock.now.saturating_sub(last_seen) / 1_000_000_000,
        expires_seconds: whole.map_or(Duration::ZERO, |whole| time_left(&whole, clock)).as_secs(),
        in_packets: entry.packets,
        out_packets: traffic.out_packets,
        in_bytes: entry.bytes,
        out_bytes: traffic.out_bytes,
    }
}

/// Time until the connection is forgotten if no packet comes.
fn time_left<A: MapAddr>(connection: &flow::Connection<A>, clock: &Clock) -> Duration {
    let silent = Duration::from_nanos(clock.now.saturating_sub(connection.last_seen));
    Duration::from_secs(connection.timeout(&clock.timeouts.into()).into()).saturating_sub(silent)
}

fn role<A: MapAddr>(entry: &CtEntry<A>) -> &'static str {
    match Role(entry.role) {
        Role::HOST => "host",
        Role::DSR => "dsr",
        Role::LEAVE => "leave",
        Role::DIRECT => "direct",
        _ => "dnat",
    }
}

pub(in crate::cli) fn state<A: MapAddr>(
    rows: &Rows<A>,
    key: &CtKey<A>,
    entry: &CtEntry<A>,
) -> Option<TcpState> {
    let of = |reply| match Role(entry.role) {
        role if role.is_alone() => flow::TcpState::of_client(entry.tcp_flags),
        _ => flow::TcpState::of(entry.tcp_flags, reply),
    };
    (key.proto == proto::TCP).then(|| of(reply(rows, key, entry).map_or(0, |r| r.tcp_flags)).into())
}

/// The row of the reply's last step, if it comes by here.
fn reply<'a, A: MapAddr>(rows: &'a Rows<A>, key: &CtKey<A>, entry: &CtEntry<A>) -> Option<&'a CtEntry<A>> {
    if Role(entry.role).is_alone() {
        return None;
    }
    rows.conntrack.get(&entry.pair(key.proto, key.hook))
}

/// The source the backend sees; nothing while it is not chosen yet.
fn source_at_backend<A: MapAddr>(rows: &Rows<A>, key: &CtKey<A>, entry: &CtEntry<A>) -> Option<SocketAddr> {
    if entry.role != Role::DNAT.0 || entry.flags & flags::SNAT == 0 {
        return Some(socket(entry.src, entry.sport));
    }
    let second = rows.conntrack.get(&entry.next(key.proto))?;
    (second.flags & flags::SNAT_PENDING == 0).then(|| socket(second.src, second.sport))
}

//! Removes rows of the flow tables that are over or no longer allowed.
//!
//! Level-triggered: each sweep looks at every row, whatever happened before. UDP has no
//! end of its own, so its flows are cut when the service no longer leads where they go;
//! TCP and SCTP connections to a backend that is gone go on until they end.
//!
//! A connected UDP socket asks nobody when it sends. One that socket LB connected to a
//! backend that is no longer allowed is destroyed, so that its program gets an error and
//! connects anew.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::SocketAddr,
    time::Duration,
};

use proxy_common::{
    maps::{
        conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, flags},
        frontends::FrontendKey,
        socket_flows::{SocketFlow, SocketFlowKey, TO_BACKEND, TO_FRONTEND},
    },
    proto,
};

use super::{FamilyMaps, MapAddr, MapError, MapStore, Reconciler, Sockets, StaleSocket, family::FamilyTable};

/// Bits of the TCP header's flags (RFC 9293 §3.1).
const FIN: u8 = 0x01;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// After how much silence a connection is forgotten. The defaults are those of kube-proxy
/// where it sets them (`conntrack.tcpEstablishedTimeout`, `conntrack.tcpCloseWaitTimeout`),
/// else those of netfilter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP, both sides have acknowledged.
    pub tcp_established: Duration,
    /// TCP, not yet.
    pub tcp_opening: Duration,
    /// TCP, one side has closed.
    pub tcp_half_closed: Duration,
    /// TCP, both sides have closed.
    pub tcp_closed: Duration,
    /// TCP, one side has reset.
    pub tcp_reset: Duration,
    /// UDP, a question and perhaps its answer.
    pub udp: Duration,
    /// UDP, more than that.
    pub udp_stream: Duration,
    /// SCTP; its heartbeats come every 30 seconds.
    pub sctp: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            tcp_established: Duration::from_secs(24 * 60 * 60),
            tcp_opening: Duration::from_secs(120),
            tcp_half_closed: Duration::from_secs(60 * 60),
            tcp_closed: Duration::from_secs(120),
            tcp_reset: Duration::from_secs(10),
            udp: Duration::from_secs(30),
            udp_stream: Duration::from_secs(120),
            sctp: Duration::from_secs(210),
        }
    }
}

/// How many connections a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Silent for too long, or ended.
    pub expired: usize,
    /// To a backend or by a frontend that is no longer theirs.
    pub stale: usize,
    /// Translations of sockets that are no longer allowed.
    pub socket_flows: usize,
    /// Connected sockets that were destroyed.
    pub destroyed: usize,
}

/// Why a sweep was not completed; the next one begins from the start.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A flow table could not be read or written.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Connected sockets may still send to a backend that is gone.
    #[error("cannot destroy sockets whose backend is gone: {0}")]
    Sockets(#[from] io::Error),
}

impl Reconciler {
    /// Sweeps the flow tables of both families. `now_ns` is `CLOCK_MONOTONIC`.
    ///
    /// To be called only once all that exists has been applied and pruned: flows of a
    /// service that is not known yet would be cut.
    pub fn sweep(
        &self,
        maps: &mut impl MapStore,
        sockets: &mut impl Sockets,
        now_ns: u64,
        timeouts: &Timeouts,
    ) -> Result<Swept, SweepError> {
        let mut swept = Swept::default();
        let v4 = Sweep::new(&self.v4, now_ns, timeouts).run(maps.v4(), &mut swept)?;
        let v6 = Sweep::new(&self.v6, now_ns, timeouts).run(maps.v6(), &mut swept)?;
        // The rows go last: they are all that is known of sockets still to be destroyed.
        let stale: HashSet<_> =
            v4.iter().filter_map(connected).chain(v6.iter().filter_map(connected)).collect();
        if !stale.is_empty() {
            swept.destroyed = sockets.destroy(&Vec::from_iter(stale))?;
        }
        swept.socket_flows = v4.len() + v6.len();
        delete_socket_flows(maps.v4(), &v4)?;
        delete_socket_flows(maps.v6(), &v6)?;
        Ok(swept)
    }
}

/// The socket a row is about, if it may be a connected one.
fn connected<A: MapAddr>(key: &SocketFlowKey<A>) -> Option<StaleSocket> {
    let [high, low] = key.cookie.map(u64::from);
    let peer = SocketAddr::new(key.addr.into(), key.port);
    (key.direction == TO_FRONTEND).then_some(StaleSocket { cookie: high << 32 | low, peer })
}

fn delete_socket_flows<A: MapAddr>(
    maps: &mut impl FamilyMaps<A>,
    keys: &[SocketFlowKey<A>],
) -> Result<(), MapError> {
    if keys.is_empty() { Ok(()) } else { maps.delete_socket_flows(keys) }
}

type Rows<A> = HashMap<CtKey<A>, CtEntry<A>>;

struct Sweep<'a, A> {
    table: &'a FamilyTable<A>,
    now_ns: u64,
    timeouts: &'a Timeouts,
    /// Backends of each service port that has come up, to ask about many flows of a large one.
    allowed: HashMap<u32, HashSet<u32>>,
}

impl<'a, A: MapAddr> Sweep<'a, A> {
    fn new(table: &'a FamilyTable<A>, now_ns: u64, timeouts: &'a Timeouts) -> Self {
        Self { table, now_ns, timeouts, allowed: HashMap::new() }
    }

    /// Sweeps `conntrack`; returns the rows of `socket_flows` that have to go.
    fn run(
        mut self,
        maps: &mut impl FamilyMaps<A>,
        swept: &mut Swept,
    ) -> Result<Vec<SocketFlowKey<A>>, MapError> {
        let mut rows = Rows::new();
        maps.each_conntrack(&mut |key, entry| {
            rows.insert(*key, *entry);
        })?;
        let gone = self.conntrack(&rows, swept);
        if !gone.is_empty() {
            maps.delete_conntrack(&gone)?;
        }
        let mut gone = Vec::new();
        maps.each_socket_flow(&mut |key, flow| {
            if self.is_stale_socket_flow(key, flow) {
                gone.push(*key);
            }
        })?;
        Ok(gone)
    }

    /// The rows to remove: whole connections, and rows whose connection lost its first row.
    fn conntrack(&mut self, rows: &Rows<A>, swept: &mut Swept) -> Vec<CtKey<A>> {
        let mut gone = Vec::new();
        let mut seen = HashSet::new();
        let (primary, other): (Vec<_>, Vec<_>) =
            rows.iter().partition(|(_, entry)| Role(entry.role).is_primary());
        for (key, entry) in primary.into_iter().chain(other) {
            if seen.contains(key) {
                continue;
            }
            let connection = Connection::of(rows, key, entry);
            seen.extend(connection.rows.iter().map(|(key, _)| **key));
            let expired = connection.is_expired(self.now_ns, self.timeouts);
            let stale = key.proto == proto::UDP && self.is_stale(key, entry);
            if expired || stale {
                swept.expired += usize::from(expired);
                swept.stale += usize::from(!expired);
                gone.extend(connection.rows.iter().map(|(key, _)| **key));
            }
        }
        gone
    }

    fn is_stale(&mut self, key: &CtKey<A>, entry: &CtEntry<A>) -> bool {
        let primary = Role(entry.role).is_primary();
        let elsewhere = || self.leads_elsewhere(entry.backend, (entry.dst, entry.dport));
        let unanswered = || !self.table.answers(key.dst, key.dport, key.proto, entry.service);
        (primary && (elsewhere() || unanswered())) || !self.allows(entry.service, entry.backend)
    }

    fn is_stale_socket_flow(&mut self, key: &SocketFlowKey<A>, flow: &SocketFlow<A>) -> bool {
        if key.proto != proto::UDP {
            return false;
        }
        let (frontend, backend) = if key.direction == TO_BACKEND {
            ((key.addr, key.port), (flow.addr, flow.port))
        } else {
            ((flow.addr, flow.port), (key.addr, key.port))
        };
        self.leads_elsewhere(flow.backend, backend)
            || !self.table.answers(frontend.0, frontend.1, key.proto, flow.service)
            || !self.allows(flow.service, flow.backend)
    }

    /// True when the id stands for another backend: ids are given out again.
    fn leads_elsewhere(&self, id: u32, backend: (A, u16)) -> bool {
        self.table.backends.row(id).is_none_or(|row| (row.addr, row.port) != backend)
    }

    fn allows(&mut self, service: u32, backend: u32) -> bool {
        let ids = || self.table.ports.get(&service).map(|port| port.backends().collect()).unwrap_or_default();
        self.allowed.entry(service).or_insert_with(ids).contains(&backend)
    }
}

impl<A: MapAddr> FamilyTable<A> {
    /// True when a service port answers on this address, or on every address of the node.
    fn answers(&self, addr: A, port: u16, proto: u8, service: u32) -> bool {
        [addr, A::default()].into_iter().any(|addr| {
            let key = FrontendKey { addr, port, proto, pad: 0 };
            self.frontends.get(&key).is_some_and(|written| written.value.service == service)
        })
    }
}

/// The rows of one connection, as far as they exist.
struct Connection<'a, A> {
    proto: u8,
    rows: Vec<(&'a CtKey<A>, &'a CtEntry<A>)>,
}

impl<'a, A: MapAddr> Connection<'a, A> {
    /// All rows if `key` is the first one, else just this.
    fn of(rows: &'a Rows<A>, key: &'a CtKey<A>, entry: &'a CtEntry<A>) -> Self {
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
            add(CtKey::new(&target.reversed(), INGRESS), Role::REV_HOST);
        } else if entry.role == Role::DNAT.0 {
            add(CtKey::new(&target.reversed(), EGRESS), Role::REV_DNAT);
            if entry.flags & flags::SNAT != 0
                && let Some(snat) = add(CtKey::new(&target, EGRESS), Role::SNAT)
            {
                add(CtKey::new(&snat.target(key.proto).reversed(), INGRESS), Role::REV_SNAT);
            }
        }
        connection
    }

    fn is_expired(&self, now_ns: u64, timeouts: &Timeouts) -> bool {
        let last_seen = self.rows.iter().map(|(_, entry)| entry.last_seen).max().unwrap_or(0);
        u128::from(now_ns.saturating_sub(last_seen)) > self.timeout(timeouts).as_nanos()
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
        let is_reply = |role: u8| [Role::REV_SNAT, Role::REV_DNAT, Role::REV_HOST].contains(&Role(role));
        let seen = |reply: bool| {
            let rows = self.rows.iter().filter(|(_, entry)| is_reply(entry.role) == reply);
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

#[cfg(test)]
mod tests;

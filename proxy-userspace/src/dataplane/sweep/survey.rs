//! What the flow tables hold: connections that are over, and the ways that datagrams go.

use std::collections::{HashMap, HashSet};

use proxy_common::{
    addr::{Ip4, Ip6},
    maps::{
        conntrack::{CtEntry, CtKey, Role},
        counters::CounterKey,
        socket_datagrams::ListedPair,
    },
    proto,
};

use super::{
    Served, Timeouts,
    connection::{Connection, Rows},
    counters::{self, Counts},
};
use crate::{
    dataplane::{FamilyMaps, MapAddr, MapError, MapStore},
    model::Family,
};

/// What a look at all flows found.
#[derive(Debug)]
pub struct Survey {
    pub(super) v4: Flows<Ip4>,
    pub(super) v6: Flows<Ip6>,
    /// When it was taken, by `CLOCK_MONOTONIC`.
    pub(in crate::dataplane) now_ns: u64,
}

/// The flows of one family.
#[derive(Debug)]
pub(in crate::dataplane) struct Flows<A> {
    /// Rows of `conntrack`.
    pub(in crate::dataplane) conntrack: usize,
    /// Of these, rows of connections that give way to others.
    pub(in crate::dataplane) transient: usize,
    /// What masquerading uses.
    pub(in crate::dataplane) snat: PortUse<A>,
    /// What backends have done so far.
    pub(in crate::dataplane) counts: Counts,
    /// Clients that stick to a backend, or did.
    pub(in crate::dataplane) clients: Clients,
    /// Rows of connections that are left to netfilter.
    pub(super) left: usize,
    /// Connections that were over, and are removed.
    pub(super) expired: usize,
    pub(super) ways: HashMap<Path<A>, Datagrams<A>>,
}

/// Source ports in use by masquerading: node address and protocol → backend → number.
pub(in crate::dataplane) type PortUse<A> = HashMap<(A, u8), HashMap<(A, u16), usize>>;

/// When the clients of each service port opened their last connections, by `CLOCK_MONOTONIC` in
/// nanoseconds. Which of them still stick follows from the timeout, which rows do not tell.
pub(in crate::dataplane) type Clients = HashMap<u32, Vec<u64>>;

/// The way that UDP flows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Path<A> {
    pub(super) service: u32,
    pub(super) backend: u32,
    pub(super) proto: u8,
    /// Unknown of a row whose connection lost its first one.
    pub(super) ends: Option<Ends<A>>,
}

/// Both ends of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ends<A> {
    pub(super) frontend: (A, u16),
    pub(super) backend: (A, u16),
}

/// The flows that go one way.
#[derive(Debug)]
pub(super) struct Datagrams<A> {
    pub(super) connections: Vec<Box<[CtKey<A>]>>,
    pub(super) sockets: Vec<ListedPair<A>>,
}

impl Survey {
    /// Looks at all flows and removes those that are over. `now_ns` is `CLOCK_MONOTONIC`.
    pub fn take(maps: &mut impl MapStore, now_ns: u64, timeouts: &Timeouts) -> Result<Self, MapError> {
        let v4 = Flows::take(maps.v4(), now_ns, timeouts)?;
        Ok(Self { v4, v6: Flows::take(maps.v6(), now_ns, timeouts)?, now_ns })
    }

    /// What the backends of both families have done so far.
    pub fn served(&self) -> impl Iterator<Item = (Family, CounterKey, Served)> {
        let of = |family| move |(key, served): (&CounterKey, &Served)| (family, *key, *served);
        let v4 = self.v4.counts.iter().map(of(Family::V4));
        v4.chain(self.v6.counts.iter().map(of(Family::V6)))
    }

    /// Rows of connections that are left to netfilter.
    pub fn left(&self) -> usize {
        self.v4.left + self.v6.left
    }

    /// The flows of both families.
    pub(in crate::dataplane) fn families(&self) -> (&Flows<Ip4>, &Flows<Ip6>) {
        (&self.v4, &self.v6)
    }
}

impl<A: MapAddr> Flows<A> {
    fn take(maps: &mut impl FamilyMaps<A>, now_ns: u64, timeouts: &Timeouts) -> Result<Self, MapError> {
        let mut rows = Rows::new();
        maps.each_conntrack(&mut |key, entry| {
            rows.insert(*key, *entry);
        })?;
        let mut flows = Self {
            conntrack: rows.len(),
            transient: 0,
            snat: ports_in_use(&rows),
            counts: Counts::new(),
            clients: Clients::new(),
            left: rows.values().filter(|entry| entry.role == Role::LEAVE.0).count(),
            expired: 0,
            ways: HashMap::new(),
        };
        let over = flows.sort(&rows, now_ns, timeouts);
        drop(rows);
        flows.expired = super::remove::expired(maps, &over)?;
        flows.count(maps)?;
        maps.each_affinity(&mut |key, row| {
            flows.clients.entry(key.service).or_default().push(row.last_used)
        })?;
        maps.each_socket_pair(&mut |listed| flows.add_socket(listed))?;
        Ok(flows)
    }

    /// Adds what is over to what is open.
    fn count(&mut self, maps: &impl FamilyMaps<A>) -> Result<(), MapError> {
        for (key, over) in counters::read(maps)? {
            let served = self.counts.entry(key).or_default();
            served.opened = over.opened;
            served.traffic += over.traffic;
        }
        Ok(())
    }

    /// The ways that flows go.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path<A>> {
        self.ways.keys()
    }

    /// Tells those that are over from those to be judged. Rows whose connection lost its
    /// first one stand for themselves.
    fn sort(&mut self, rows: &Rows<A>, now_ns: u64, timeouts: &Timeouts) -> Vec<Over<A>> {
        let mut over = Vec::new();
        let mut seen = HashSet::with_capacity(rows.len());
        for primaries in [true, false] {
            let is_turn = |entry: &CtEntry<A>| Role(entry.role).is_primary() == primaries;
            for (key, entry) in rows.iter().filter(|(_, entry)| is_turn(entry)) {
                if seen.contains(key) {
                    continue;
                }
                let connection = Connection::of(rows, key, entry);
                seen.extend(connection.rows.iter().map(|(key, _)| **key));
                let keys = connection.rows.iter().map(|(key, _)| **key).collect();
                if connection.is_expired(now_ns, timeouts) {
                    over.push(Over { keys, last_seen: connection.last_seen() });
                    continue;
                }
                if connection.gives_way() {
                    self.transient += connection.rows.len();
                }
                if let Some(key) = entry.counter_key() {
                    let served = self.counts.entry(key).or_default();
                    served.open += u64::from(primaries);
                    connection.rows.iter().for_each(|(_, row)| served.traffic += row.traffic());
                }
                if key.proto == proto::UDP && entry.service != 0 {
                    self.way(path(key, entry)).connections.push(keys);
                }
            }
        }
        over
    }

    fn add_socket(&mut self, listed: &ListedPair<A>) {
        let pair = &listed.pair;
        let ends = Ends {
            frontend: (pair.frontend, pair.frontend_port),
            backend: (pair.backend, pair.backend_port),
        };
        let path =
            Path { service: pair.service, backend: pair.backend_id, proto: proto::UDP, ends: Some(ends) };
        self.way(path).sockets.push(*listed);
    }

    fn way(&mut self, path: Path<A>) -> &mut Datagrams<A> {
        let empty = || Datagrams { connections: Vec::new(), sockets: Vec::new() };
        self.ways.entry(path).or_insert_with(empty)
    }
}

/// Each reply to a masqueraded connection finds it by a row with the port. Ports that another connection
/// may have at once are free.
fn ports_in_use<A: MapAddr>(rows: &Rows<A>) -> PortUse<A> {
    let is_held = |key: &CtKey<A>, reply: &CtEntry<A>| {
        let forward = rows.get(&reply.pair(key.proto, key.hook));
        forward.is_none_or(|forward| key.is_undone_by(forward) && !forward.gives_way(reply, key.proto))
    };
    let mut ports = PortUse::new();
    for (key, entry) in rows.iter().filter(|(_, entry)| entry.role == Role::REV_SNAT.0) {
        if !is_held(key, entry) {
            continue;
        }
        let backends = ports.entry((key.dst, key.proto)).or_default();
        *backends.entry((key.src, key.sport)).or_default() += 1;
    }
    ports
}

/// A connection that is over.
pub(super) struct Over<A> {
    pub(super) keys: Box<[CtKey<A>]>,
    /// When a packet of it was last seen.
    pub(super) last_seen: u64,
}

fn path<A: MapAddr>(key: &CtKey<A>, entry: &CtEntry<A>) -> Path<A> {
    let ends = Ends { frontend: (key.dst, key.dport), backend: (entry.dst, entry.dport) };
    let ends = Role(entry.role).is_primary().then_some(ends);
    Path { service: entry.service, backend: entry.backend, proto: key.proto, ends }
}

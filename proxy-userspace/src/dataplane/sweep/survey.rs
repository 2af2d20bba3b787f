//! What the flow tables hold, in sums: connections are swept, and removed when they are over, where they lie.

use std::collections::{HashMap, HashSet};

use proxy_common::{
    addr::{Ip4, Ip6},
    maps::{
        counters::CounterKey,
        socket_datagrams::ListedPair,
        stale_ways::Way,
        sweep::{
            SweptConnection,
            flags::{GIVES_WAY, HOLDS_PORT, LEFT, LISTED, OVER},
        },
    },
};

use super::{
    Served, Timeouts,
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
    /// The ways that datagrams go, each with the sockets that hold it.
    pub(super) ways: HashMap<Way<A>, Vec<ListedPair<A>>>,
    /// Sockets whose programs have named a backend themselves, with that.
    pub(super) named: HashSet<Named<A>>,
}

/// Cookie of a socket, address and port.
pub(super) type Named<A> = ([u32; 2], A, u16);

/// Source ports in use by masquerading: node address and protocol → backend → number.
pub(in crate::dataplane) type PortUse<A> = HashMap<(A, u8), HashMap<(A, u16), usize>>;

/// When the clients of each service port opened their last connections, by `CLOCK_MONOTONIC` in
/// nanoseconds. Which of them still stick follows from the timeout, which rows do not tell.
pub(in crate::dataplane) type Clients = HashMap<u32, Vec<u64>>;

impl Survey {
    /// Has all flows swept, and those that are over removed. `now_ns` is `CLOCK_MONOTONIC`.
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

    /// Connections that were over, and are removed.
    pub fn expired(&self) -> usize {
        self.v4.expired + self.v6.expired
    }

    /// The flows of both families.
    pub(in crate::dataplane) fn families(&self) -> (&Flows<Ip4>, &Flows<Ip6>) {
        (&self.v4, &self.v6)
    }
}

impl<A: MapAddr> Flows<A> {
    fn take(maps: &mut impl FamilyMaps<A>, now_ns: u64, timeouts: &Timeouts) -> Result<Self, MapError> {
        let mut flows = Self {
            conntrack: 0,
            transient: 0,
            snat: PortUse::new(),
            // Before the rows: what goes meanwhile is not counted twice.
            counts: counters::read(maps)?,
            clients: Clients::new(),
            left: 0,
            expired: 0,
            ways: HashMap::new(),
            named: HashSet::new(),
        };
        flows.conntrack = maps.sweep(now_ns, (*timeouts).into(), &mut |swept| flows.add(swept))?;
        maps.each_affinity(&mut |key, row| {
            flows.clients.entry(key.service).or_default().push(row.last_used)
        })?;
        maps.each_socket_pair(&mut |listed| flows.add_socket(listed))?;
        Ok(flows)
    }

    /// Adds a connection to the sums.
    fn add(&mut self, swept: &SweptConnection<A>) {
        let is = |flag| swept.flags & flag != 0;
        let (rows, way) = (usize::from(swept.rows), swept.way);
        self.left += if is(LEFT) { rows } else { 0 };
        if let Some(key) = swept.counter_key() {
            let served = self.counts.entry(key).or_default();
            served.open += u64::from(is(LISTED) && !is(OVER));
            served.traffic += swept.traffic();
        }
        if is(OVER) {
            self.expired += 1;
            return;
        }
        self.transient += if is(GIVES_WAY) { rows } else { 0 };
        if is(HOLDS_PORT) {
            let backends = self.snat.entry((swept.masquerade, swept.proto)).or_default();
            *backends.entry((way.backend_addr, way.backend_port)).or_default() += 1;
        }
        if swept.may_be_cut() {
            self.ways.entry(way).or_default();
        }
    }

    fn add_socket(&mut self, listed: &ListedPair<A>) {
        let pair = &listed.pair;
        if pair.is_direct() {
            self.named.insert((listed.cookie, pair.backend, pair.backend_port));
            return;
        }
        let way = Way {
            service: pair.service,
            backend: pair.backend_id,
            frontend: pair.frontend,
            frontend_port: pair.frontend_port,
            backend_addr: pair.backend,
            backend_port: pair.backend_port,
        };
        self.ways.entry(way).or_default().push(*listed);
    }
}

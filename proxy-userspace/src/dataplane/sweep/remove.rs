//! Removes flows. Time has passed since they were read, so each is looked at again right
//! before it goes: a packet may have come, or another flow taken its place.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use proxy_common::maps::{
    conntrack::{CtEntry, CtKey},
    counters::{CounterKey, Traffic},
    socket_flows::{SocketFlowKey, TO_FRONTEND},
};

use super::{
    FamilyVerdict, Survey, SweepError, Swept, Verdict, counters,
    survey::{Flows, Over},
};
use crate::dataplane::{FamilyMaps, MapAddr, MapError, MapStore, Sockets, StaleSocket};

/// Connections looked at before they are removed together.
const BATCH: usize = 256;

impl Survey {
    /// Removes the flows that go a way they may not.
    pub fn remove(
        self,
        verdict: &Verdict,
        maps: &mut impl MapStore,
        sockets: &mut impl Sockets,
    ) -> Result<Swept, SweepError> {
        let mut swept = Swept { expired: self.v4.expired + self.v6.expired, ..Swept::default() };
        let v4 = self.v4.remove(&verdict.v4, maps.v4(), &mut swept)?;
        let stale_v4 = swept.stale;
        let v6 = self.v6.remove(&verdict.v6, maps.v6(), &mut swept)?;
        swept.cut = [stale_v4 + v4.len(), swept.stale - stale_v4 + v6.len()];
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

impl<A: MapAddr> Flows<A> {
    /// Removes rows of `conntrack`; returns those of `socket_flows` that have to go.
    fn remove(
        self,
        verdict: &FamilyVerdict<A>,
        maps: &mut impl FamilyMaps<A>,
        swept: &mut Swept,
    ) -> Result<Vec<SocketFlowKey<A>>, MapError> {
        let mut sockets = Vec::new();
        if !verdict.counters.is_empty() {
            maps.delete_counters(&verdict.counters)?;
        }
        let stale = &verdict.stale;
        for (path, datagrams) in self.ways.into_iter().filter(|(path, _)| stale.contains(path)) {
            let same = |entry: &CtEntry<A>| (entry.service, entry.backend) == (path.service, path.backend);
            let connections = datagrams.connections.iter().map(|keys| (&keys[..], same));
            swept.stale += delete_unless_changed(maps, connections)?;
            sockets.extend(datagrams.sockets);
        }
        Ok(sockets)
    }
}

/// Removes connections that are over, unless a packet has come since. Returns how many went.
pub(super) fn expired<A: MapAddr>(
    maps: &mut impl FamilyMaps<A>,
    over: &[Over<A>],
) -> Result<usize, MapError> {
    let silent = |last_seen| move |entry: &CtEntry<A>| entry.last_seen <= last_seen;
    delete_unless_changed(maps, over.iter().map(|over| (&over.keys[..], silent(over.last_seen))))
}

/// Deletes the rows of those connections of which every row that is left passes its test.
fn delete_unless_changed<'a, A: MapAddr>(
    maps: &mut impl FamilyMaps<A>,
    mut connections: impl Iterator<Item = (&'a [CtKey<A>], impl Fn(&CtEntry<A>) -> bool)>,
) -> Result<usize, MapError> {
    let mut count = 0;
    loop {
        let mut keys = Vec::new();
        let mut carried: HashMap<CounterKey, Traffic> = HashMap::new();
        let mut looked_at = 0;
        for (rows, unchanged) in connections.by_ref().take(BATCH) {
            looked_at += 1;
            let Some(found) = every_row(maps, rows, unchanged)? else { continue };
            for entry in found {
                if let Some(key) = counters::key(&entry) {
                    *carried.entry(key).or_default() += counters::traffic(&entry);
                }
            }
            keys.extend_from_slice(rows);
            count += 1;
        }
        if !keys.is_empty() {
            maps.delete_conntrack(&keys)?;
            maps.add_traffic(&Vec::from_iter(carried))?;
        }
        if looked_at < BATCH {
            return Ok(count);
        }
    }
}

/// The rows that are left, unless one of them fails the test.
fn every_row<A: MapAddr>(
    maps: &impl FamilyMaps<A>,
    keys: &[CtKey<A>],
    test: impl Fn(&CtEntry<A>) -> bool,
) -> Result<Option<Vec<CtEntry<A>>>, MapError> {
    let mut rows = Vec::with_capacity(keys.len());
    for key in keys {
        match maps.conntrack(key)? {
            Some(entry) if !test(&entry) => return Ok(None),
            entry => rows.extend(entry),
        }
    }
    Ok(Some(rows))
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

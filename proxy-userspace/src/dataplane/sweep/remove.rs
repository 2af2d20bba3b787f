//! Removes flows. Time has passed since they were read, so each is looked at again right
//! before it goes: a packet may have come, or another flow taken its place.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use proxy_common::maps::{
    conntrack::{CtEntry, CtKey},
    counters::{CounterKey, Traffic},
    socket_datagrams::ListedPair,
};

use super::{
    FamilyVerdict, Survey, SweepError, Swept, Verdict,
    survey::{Flows, Over},
};
use crate::dataplane::{FamilyMaps, MapAddr, MapError, MapStore, Sockets, StaleSocket};

/// Backends whose traffic is added to together.
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
        // The pairs go last: they are all that is known of sockets still to be destroyed.
        let stale: HashSet<_> =
            v4.iter().filter_map(connected).chain(v6.iter().filter_map(connected)).collect();
        if !stale.is_empty() {
            swept.destroyed = sockets.destroy(&Vec::from_iter(stale))?;
        }
        swept.socket_pairs = v4.len() + v6.len();
        forget(maps.v4(), &v4)?;
        forget(maps.v6(), &v6)?;
        Ok(swept)
    }
}

impl<A: MapAddr> Flows<A> {
    /// Removes rows of `conntrack`; returns the pairs of sockets that have to go.
    fn remove(
        self,
        verdict: &FamilyVerdict<A>,
        maps: &mut impl FamilyMaps<A>,
        swept: &mut Swept,
    ) -> Result<Vec<ListedPair<A>>, MapError> {
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
    connections: impl Iterator<Item = (&'a [CtKey<A>], impl Fn(&CtEntry<A>) -> bool)>,
) -> Result<usize, MapError> {
    let mut count = 0;
    let mut carried = HashMap::new();
    for (keys, unchanged) in connections {
        let taken = take(maps, keys, unchanged, &mut carried);
        // What is gone stays counted, also if the rest could not be removed.
        if taken.is_err() || carried.len() >= BATCH {
            maps.add_traffic(&carried.drain().collect::<Vec<_>>())?;
        }
        count += usize::from(taken?);
    }
    maps.add_traffic(&Vec::from_iter(carried))?;
    Ok(count)
}

/// Removes rows if all that are left pass the test, and adds what they have counted to `carried`; false if
/// one does not. In the place of one that fails it only when it is removed, a packet has come since, or a
/// program has entered another connection.
fn take<A: MapAddr>(
    maps: &mut impl FamilyMaps<A>,
    keys: &[CtKey<A>],
    test: impl Fn(&CtEntry<A>) -> bool,
    carried: &mut HashMap<CounterKey, Traffic>,
) -> Result<bool, MapError> {
    for key in keys {
        if maps.conntrack(key)?.is_some_and(|entry| !test(&entry)) {
            return Ok(false);
        }
    }
    for key in keys {
        let Some(entry) = maps.take_conntrack(key)? else { continue };
        if !test(&entry) {
            maps.insert_conntrack(key, &entry)?;
        } else if let Some(key) = entry.counter_key() {
            *carried.entry(key).or_default() += entry.traffic();
        }
    }
    Ok(true)
}

/// The socket that holds the pair, if it was connected by it.
fn connected<A: MapAddr>(listed: &ListedPair<A>) -> Option<StaleSocket> {
    let [high, low] = listed.cookie.map(u64::from);
    let peer = SocketAddr::new(listed.pair.backend.into(), listed.pair.backend_port);
    (listed.connected != 0).then_some(StaleSocket { cookie: high << 32 | low, peer })
}

fn forget<A: MapAddr>(maps: &mut impl FamilyMaps<A>, listed: &[ListedPair<A>]) -> Result<(), MapError> {
    let pairs: HashSet<_> = listed.iter().map(|listed| listed.pair).collect();
    if pairs.is_empty() { Ok(()) } else { maps.forget_socket_pairs(&Vec::from_iter(pairs)) }
}

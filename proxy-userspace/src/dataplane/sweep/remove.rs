//! Removes flows that go where they may not.

use std::{collections::HashSet, net::SocketAddr};

use proxy_common::maps::{socket_datagrams::ListedPair, stale_ways::Way};

use super::{FamilyVerdict, Survey, SweepError, Swept, Verdict, survey::Flows};
use crate::dataplane::{FamilyMaps, MapAddr, MapError, MapStore, Sockets, StaleSocket};

impl Survey {
    /// Removes the flows that go a way they may not.
    pub fn remove(
        self,
        verdict: &Verdict,
        maps: &mut impl MapStore,
        sockets: &mut impl Sockets,
    ) -> Result<Swept, SweepError> {
        let mut swept = Swept { expired: self.expired(), ..Swept::default() };
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
        let is_stale = |way: &Way<A>| verdict.stale.contains(way);
        for (_, held) in self.ways.into_iter().filter(|(way, _)| is_stale(way)) {
            sockets.extend(held);
        }
        swept.stale += maps.cut(&Vec::from_iter(verdict.stale.iter().copied()))?;
        Ok(sockets)
    }
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

//! Removes flows that go where they may not.

use std::{collections::HashSet, net::SocketAddr};

use proxy_common::maps::{
    socket_datagrams::{ListedPair, kind},
    stale_ways::Way,
};

use super::{
    FamilyVerdict, Survey, SweepError, Swept, Verdict,
    survey::{Flows, Named},
};
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
        let mut connected = HashSet::new();
        let v4 = self.v4.remove(&verdict.v4, maps.v4(), &mut swept, &mut connected)?;
        let stale_v4 = swept.stale;
        let v6 = self.v6.remove(&verdict.v6, maps.v6(), &mut swept, &mut connected)?;
        swept.cut = [stale_v4 + v4.len(), swept.stale - stale_v4 + v6.len()];
        // The pairs go last: they are all that is known of sockets still to be destroyed.
        if !connected.is_empty() {
            swept.destroyed = sockets.destroy(&Vec::from_iter(connected))?;
        }
        swept.socket_pairs = v4.len() + v6.len();
        forget(maps.v4(), &v4)?;
        forget(maps.v6(), &v6)?;
        Ok(swept)
    }
}

impl<A: MapAddr> Flows<A> {
    /// Removes rows of `conntrack`; returns the pairs of sockets that have to go. Sockets that may be connected by one
    /// are added to `connected`.
    fn remove(
        self,
        verdict: &FamilyVerdict<A>,
        maps: &mut impl FamilyMaps<A>,
        swept: &mut Swept,
        connected: &mut HashSet<StaleSocket>,
    ) -> Result<Vec<ListedPair<A>>, MapError> {
        if !verdict.counters.is_empty() {
            maps.delete_counters(&verdict.counters)?;
        }
        let is_stale = |way: &Way<A>| verdict.stale.contains(way);
        let pairs: Vec<_> =
            self.ways.into_iter().filter(|(way, _)| is_stale(way)).flat_map(|(_, held)| held).collect();
        let may_be_connected = pairs.iter().filter(|listed| may_be_connected(listed, &self.named));
        connected.extend(may_be_connected.map(StaleSocket::from));
        swept.stale += maps.cut(&Vec::from_iter(verdict.stale.iter().copied()))?;
        Ok(pairs)
    }
}

/// Whether the socket may be connected by the pair. What an earlier `connect` named itself it may be connected to as
/// well, and that is nobody's business.
fn may_be_connected<A: MapAddr>(listed: &ListedPair<A>, named: &HashSet<Named<A>>) -> bool {
    match listed.kind {
        kind::CONNECTED => true,
        kind::EARLIER => !named.contains(&(listed.cookie, listed.pair.backend, listed.pair.backend_port)),
        _ => false,
    }
}

impl<A: MapAddr> From<&ListedPair<A>> for StaleSocket {
    fn from(listed: &ListedPair<A>) -> Self {
        let [high, low] = listed.cookie.map(u64::from);
        let peer = SocketAddr::new(listed.pair.backend.into(), listed.pair.backend_port);
        Self { cookie: high << 32 | low, peer }
    }
}

fn forget<A: MapAddr>(maps: &mut impl FamilyMaps<A>, listed: &[ListedPair<A>]) -> Result<(), MapError> {
    let pairs: HashSet<_> = listed.iter().map(|listed| listed.pair).collect();
    if pairs.is_empty() { Ok(()) } else { maps.forget_socket_pairs(&Vec::from_iter(pairs)) }
}

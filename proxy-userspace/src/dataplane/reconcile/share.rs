//! The part of a map that one Service may take: others need room, too.

use proxy_common::addr::Addr;

use super::Waiting;
use crate::{
    dataplane::{FamilyMaps, MapError, MapName, MapStore},
    model::{Family, ObjectName},
    plan::PortPlan,
};

/// One Service has at most one row of so many.
const SHARE: usize = 2;

/// Rows of a map that one Service may have.
pub const fn share(capacity: usize) -> usize {
    capacity / SHARE
}

/// Takes those out of a chunk that are too large ever to be written to these maps.
pub(super) fn split_off_too_large(
    maps: &mut impl MapStore,
    chunk: &mut Vec<(ObjectName, Waiting)>,
) -> Vec<(ObjectName, Waiting, MapError)> {
    let room = Room::of(maps);
    let mut too_large = Vec::new();
    let mut place = 0;
    while let Some((_, waiting)) = chunk.get(place) {
        match room.ensure_share(waiting) {
            Ok(()) => place += 1,
            Err(why) => {
                let (service, waiting) = chunk.swap_remove(place);
                too_large.push((service, waiting, why));
            }
        }
    }
    too_large
}

/// Rows that maps have, asked once for many Services: the kernel takes its time to tell.
struct Room {
    services: u32,
    families: [[(MapName, u32); 4]; 2],
}

/// The maps of a family in which Services have rows.
const SHARED: [MapName; 4] = [MapName::Frontends, MapName::Backends, MapName::Slots, MapName::SourceRanges];

impl Room {
    fn of(maps: &mut impl MapStore) -> Self {
        fn of_family<A: Addr>(maps: &impl FamilyMaps<A>) -> [(MapName, u32); 4] {
            SHARED.map(|map| (map, maps.capacity(map)))
        }
        Self { services: maps.service_capacity(), families: [of_family(maps.v4()), of_family(maps.v6())] }
    }

    /// An error if the rows of a single Service take more of a map than it may have.
    fn ensure_share(&self, plans: &Waiting) -> Result<(), MapError> {
        let of = |family| plans.iter().filter(move |plan: &&PortPlan| plan.family == family);
        let ports = Family::ALL.map(|family| of(family).filter(|plan| !plan.frontends.is_empty()).count());
        ensure(MapName::Services, ports[0].max(ports[1]), self.services)?;
        Family::ALL.into_iter().try_for_each(|family| {
            let room = self.families[family as usize].into_iter();
            room.zip(rows(of(family))).try_for_each(|((map, capacity), rows)| ensure(map, rows, capacity))
        })
    }
}

fn ensure(map: MapName, rows: usize, capacity: u32) -> Result<(), MapError> {
    let share = share(capacity as usize);
    if rows <= share { Ok(()) } else { Err(MapError::TooLarge { map, rows, share, capacity }) }
}

/// Rows that the ports of one family need, in the order of [`SHARED`]. Backends count for each port, lookup tables do
/// not: they are made to fit.
fn rows<'a>(plans: impl Iterator<Item = &'a PortPlan>) -> [usize; 4] {
    let (mut frontends, mut backends, mut ranges) = (0, 0, 0);
    for plan in plans {
        frontends += plan.frontends.len();
        backends += plan.cluster.backends.len().max(plan.local.backends.len());
        ranges += plan.source_ranges.len();
    }
    [frontends, backends, backends, ranges]
}

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
    let mut too_large = Vec::new();
    let mut place = 0;
    while let Some((_, waiting)) = chunk.get(place) {
        match ensure_share(maps, waiting) {
            Ok(()) => place += 1,
            Err(why) => {
                let (service, waiting) = chunk.swap_remove(place);
                too_large.push((service, waiting, why));
            }
        }
    }
    too_large
}

/// An error if the rows of a single Service take more of a map than it may have.
fn ensure_share(maps: &mut impl MapStore, plans: &Waiting) -> Result<(), MapError> {
    let of = |family| plans.iter().filter(move |plan: &&PortPlan| plan.family == family);
    let ports = Family::ALL.map(|family| of(family).filter(|plan| !plan.frontends.is_empty()).count());
    let [v4, v6] = Family::ALL.map(|family| rows(of(family)));
    ensure(MapName::Services, ports[0].max(ports[1]), maps.service_capacity())?;
    ensure_family(maps.v4(), v4)?;
    ensure_family(maps.v6(), v6)
}

fn ensure_family<A: Addr>(maps: &impl FamilyMaps<A>, rows: [(MapName, usize); 4]) -> Result<(), MapError> {
    rows.into_iter().try_for_each(|(map, rows)| ensure(map, rows, maps.capacity(map)))
}

fn ensure(map: MapName, rows: usize, capacity: u32) -> Result<(), MapError> {
    let share = share(capacity as usize);
    if rows <= share { Ok(()) } else { Err(MapError::TooLarge { map, rows, share, capacity }) }
}

/// Rows that the ports of one family need. Backends that two ports share, and lookup tables, which are made to fit,
/// do not count.
fn rows<'a>(plans: impl Iterator<Item = &'a PortPlan>) -> [(MapName, usize); 4] {
    let (mut frontends, mut backends, mut ranges) = (0, 0, 0);
    for plan in plans {
        frontends += plan.frontends.len();
        backends += plan.cluster.backends.len().max(plan.local.backends.len());
        ranges += plan.source_ranges.len();
    }
    [
        (MapName::Frontends, frontends),
        (MapName::Backends, backends),
        (MapName::Slots, backends),
        (MapName::SourceRanges, ranges),
    ]
}

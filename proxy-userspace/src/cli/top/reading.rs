//! The maps at one moment.

use std::{collections::HashSet, path::Path, time::Instant};

use anyhow::Result;

use super::super::{
    list::drop::{self, DropView},
    rows::{Rows, Tables},
    stats::view::Sample,
};
use crate::{
    dataplane::MapAddr,
    kernel::{KernelAddr, MapSize, PinnedMaps, Pins},
};

/// Everything that is shown, as it was read.
#[derive(Debug)]
pub(super) struct Reading {
    /// When.
    pub at: Instant,
    /// Services and connections.
    pub tables: Tables,
    /// What they counted.
    pub sample: Sample,
    /// Refusals by reason, and by service and reason.
    pub refused: Vec<Refused>,
    /// How full the maps are.
    pub fills: Vec<Fill>,
}

/// Refusals, as lists have them.
pub(super) type Refused = DropView;

/// How full a map is.
#[derive(Clone, Debug)]
pub(super) struct Fill {
    /// The map, without its family.
    pub map: &'static str,
    /// Its family; empty where there is one map for both.
    pub family: &'static str,
    /// Rows in use.
    pub rows: u64,
    /// Rows it has room for, and the memory it takes.
    pub size: MapSize,
}

impl Fill {
    /// 0 for empty to 1000 for full.
    pub(super) fn tenths_of_percent(&self) -> u64 {
        (self.rows * 1000).checked_div(self.size.capacity.into()).unwrap_or(0)
    }
}

impl Reading {
    /// Reads the maps by their paths: those of another agent may have taken their place.
    ///
    /// # Errors
    /// When there are none, or they cannot be read.
    pub(super) fn take(bpffs: &Path) -> Result<Self> {
        let maps = PinnedMaps::open(Pins::new(bpffs))?;
        let tables = Tables::read_quietly(bpffs, false)?;
        let at = Instant::now();
        let sample = Sample::of(&tables);
        let mut refused: Vec<_> =
            maps.drops()?.into_iter().map(|(reason, count)| drop::view(reason, None, count)).collect();
        refused.extend(drop::by_service(&tables.service_drops, &tables.names));
        let mut fills = vec![Fill {
            map: "services",
            family: "",
            rows: maps.services()?.len() as u64,
            size: maps.size("services")?,
        }];
        fills.extend(family(&maps, &tables.v4)?);
        fills.extend(family(&maps, &tables.v6)?);
        Ok(Self { at, tables, sample, refused, fills })
    }
}

fn family<A: MapAddr + KernelAddr>(maps: &PinnedMaps, rows: &Rows<A>) -> Result<Vec<Fill>> {
    let ranges: HashSet<_> = rows.frontends.iter().flat_map(|(_, row)| [row.cluster, row.local]).collect();
    let slots = ranges.into_iter().map(|range| range.len as usize).sum();
    let counted = [
        ("frontends", rows.frontends.len()),
        ("backends", rows.backends.len()),
        ("slots", slots),
        ("conntrack", rows.conntrack.len()),
        ("affinity", rows.affinity.len()),
        ("opened", rows.opened.len()),
        ("traffic", rows.traffic.len()),
    ];
    counted
        .into_iter()
        .map(|(map, rows)| {
            let rows = rows as u64;
            Ok(Fill { map, family: A::FAMILY.name(), rows, size: maps.size_of::<A>(map, rows)? })
        })
        .collect()
}

//! Maps that fill up are given twice the room while traffic flows: a map cannot change its size,
//! so a generation with larger ones takes over.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::Instant,
};
use tracing::{info, warn};

use super::{
    Agent, Sweeper,
    startup::{self, Logs},
};
use crate::{
    dataplane::{self, MapName, Pressure, Reconciler, slots_for_tables},
    kernel::{Capacities, Datapath, KernelError, KernelMaps},
    plan::Needs,
};

/// From this level on a map is too full.
const HIGH: f64 = 0.8;
/// Pause after an attempt that failed: it costs the verifier's work and the memory of all maps.
const PAUSE: Duration = Duration::from_secs(60);

/// The next generation, while its programs are being loaded.
pub(super) struct Growth {
    most: Capacities,
    loading: Option<JoinHandle<Result<Datapath, KernelError>>>,
    not_before: Instant,
    /// At its largest, to say so once.
    exhausted: bool,
}

impl Growth {
    /// Nothing is too full yet. `most` is where growth ends.
    pub(super) fn new(most: Capacities) -> Self {
        Self { most, loading: None, not_before: Instant::now(), exhausted: false }
    }

    /// Takes in the levels after a sweep; begins to load programs with larger maps if they are needed, large
    /// enough for what there is: `needs` tells, if it is asked.
    pub(super) fn look(&mut self, pressure: &Pressure, needs: impl FnOnce() -> Needs, datapath: &Datapath) {
        if self.loading.is_some() || Instant::now() < self.not_before {
            return;
        }
        let full = too_full(pressure, &self.most);
        if full.is_empty() {
            self.exhausted = false;
            return;
        }
        let Some(grown) = datapath.capacities().grown(&full, &self.most) else {
            if !std::mem::replace(&mut self.exhausted, true) {
                warn!(maps = names(&full), "maps are full and as large as they may grow (maps.*)");
            }
            return;
        };
        let capacities = fitting(&needs(), grown, &self.most).unwrap_or(grown);
        info!(maps = names(&full), ?capacities, "maps are filling up; making larger ones");
        self.loading = Some(spawn_blocking(datapath.load_next(capacities)));
    }

    /// Waits for the programs; forever if none are being loaded.
    pub(super) async fn loaded(&mut self) -> Result<Datapath> {
        let Some(loading) = &mut self.loading else { return std::future::pending().await };
        let loaded = loading.await;
        self.loading = None;
        Ok(loaded.context("loading broke off")??)
    }

    fn failed(&mut self, error: &anyhow::Error) {
        self.not_before = Instant::now() + PAUSE;
        warn!(error = format!("{error:#}"), retry = ?PAUSE, "maps cannot grow; the present ones stay in service");
    }
}

/// Capacities with which maps have room for so many rows, as far as they may grow; nothing if those at
/// `present` are as good.
pub(crate) fn fitting(needs: &Needs, present: Capacities, most: &Capacities) -> Option<Capacities> {
    let mut fitting = present;
    loop {
        match fitting.grown(&too_small(needs, &fitting, most), most) {
            Some(grown) => fitting = grown,
            None => return (fitting != present).then_some(fitting),
        }
    }
}

/// Maps that would be too full.
fn too_small(needs: &Needs, capacities: &Capacities, most: &Capacities) -> Vec<MapName> {
    let Needs { services, frontends, backends, slots, source_ranges, largest } = *needs;
    let more = |[v4, v6]: [usize; 2]| v4.max(v6);
    let rows = [
        (MapName::Services, services),
        (MapName::Frontends, more(frontends)),
        (MapName::Backends, more(backends)),
        (MapName::Slots, more(slots.map(|slots| slots.all))),
        (MapName::SourceRanges, more(source_ranges)),
    ];
    let room = |map| capacities.room(map).map_or(f64::INFINITY, f64::from);
    let full = rows.into_iter().filter(|(map, rows)| *rows as f64 >= room(*map) * HIGH);
    let mut full: Vec<_> = full.map(|(map, _)| map).collect();
    let single = [
        (MapName::Services, largest.services),
        (MapName::Frontends, largest.frontends),
        (MapName::Backends, largest.backends),
        (MapName::Slots, largest.backends),
        (MapName::SourceRanges, largest.source_ranges),
    ];
    let finds_room = |map, rows, capacities| share(map, capacities).is_none_or(|share| rows <= share);
    // Larger maps for a Service that will find no room in the largest would be of no use to anybody.
    let gains = |map, rows| !finds_room(map, rows, capacities) && finds_room(map, rows, most);
    full.extend(single.into_iter().filter(|(map, rows)| gains(*map, *rows)).map(|(map, _)| map));
    let for_tables = more(slots.map(|slots| slots_for_tables(slots.all, slots.largest_table)));
    if for_tables as f64 > room(MapName::Slots) {
        full.push(MapName::Slots);
    }
    full
}

/// Rows of a map that one Service may have; nothing if its size cannot be changed.
fn share(map: MapName, capacities: &Capacities) -> Option<usize> {
    capacities.room(map).map(|room| dataplane::share(room as usize))
}

fn adopt(datapath: &Datapath) -> Result<(KernelMaps, Reconciler)> {
    let mut maps = datapath.maps()?;
    let reconciler = Reconciler::adopt(&mut maps)?;
    Ok((maps, reconciler))
}

fn too_full(pressure: &Pressure, most: &Capacities) -> Vec<MapName> {
    let full = pressure.maps.iter().filter(|fill| fill.level() >= HIGH).map(|fill| fill.map);
    let mut full: Vec<_> = full.collect();
    if pressure.reduced_tables > 0 || lacks_room_for_tables(pressure) {
        full.push(MapName::Slots);
    }
    let finds_room =
        |(map, rows): &(&MapName, &usize)| share(**map, most).is_some_and(|share| **rows <= share);
    full.extend(pressure.lacking.iter().filter(finds_room).map(|(map, _)| *map));
    full.sort_unstable();
    full.dedup();
    full
}

/// True when the next change of a lookup table could find too little room to keep its size: a table of
/// another size leads some connections elsewhere.
fn lacks_room_for_tables(pressure: &Pressure) -> bool {
    let mut slots = pressure.maps.iter().filter(|fill| fill.map == MapName::Slots);
    slots.any(|fill| pressure.slots_for_tables > fill.capacity)
}

fn names(maps: &[MapName]) -> String {
    maps.iter().map(MapName::to_string).collect::<Vec<_>>().join(", ")
}

impl Agent {
    /// Has the loaded generation take over from the one in service.
    ///
    /// # Errors
    /// When that was cut short in the middle: then only a new start can complete it.
    pub(super) fn grow(&mut self, loaded: Result<Datapath>) -> Result<()> {
        let grown = loaded.and_then(|next| self.replace_datapath(next));
        match grown {
            Ok(()) => self.metrics.count_growth(),
            Err(error) if self.datapath.is_taking_over() => return Err(error),
            Err(error) => {
                self.metrics.count_growth_failed();
                self.growth.failed(&error);
            }
        }
        Ok(())
    }

    fn replace_datapath(&mut self, next: Datapath) -> Result<()> {
        let start = Instant::now();
        let (last, last_maps) = self.put_in_place(next)?;
        let synced = self.engine.sync(&mut self.maps);
        if let Err(error) = self.go_into_service() {
            if !self.datapath.is_taking_over() {
                (self.datapath, self.maps) = (last, last_maps);
                self.engine.readopt(Reconciler::adopt(&mut self.maps)?);
            }
            return Err(error);
        }
        self.follow_datapath()?;
        self.written(synced, start);
        Ok(())
    }

    /// Has everything written to another generation from here on. Returns the one before.
    fn put_in_place(&mut self, mut next: Datapath) -> Result<(Datapath, KernelMaps)> {
        let opened = next.inherit().map_err(Into::into).and_then(|()| adopt(&next));
        let (maps, reconciler) = opened.inspect_err(|_| next.abort_handover())?;
        let last_maps = std::mem::replace(&mut self.maps, maps);
        let last = std::mem::replace(&mut self.datapath, next);
        self.engine.readopt(reconciler);
        Ok((last, last_maps))
    }

    fn follow_datapath(&mut self) -> Result<()> {
        self.sweeper = Sweeper::of(&self.datapath)?;
        self.logs = Logs::follow(&mut self.datapath);
        self.route_watch = startup::watch_routes(&self.datapath, &mut self.tasks)?;
        Ok(())
    }

    /// Takes the place of a generation that has translated nothing. Its socket hooks know no service, so
    /// both generations may be attached.
    fn replace_unused(&mut self, last: Datapath) -> Result<()> {
        self.datapath.replace()?;
        self.attach_sockets()?;
        last.remove();
        Ok(())
    }

    /// Gives maps their size before the first row is written, once what exists is known: else they
    /// would grow again and again while a large cluster is being written. What cannot be had now
    /// is tried again when they fill up.
    ///
    /// # Errors
    /// When the maps in service cannot be opened.
    pub(super) fn make_room(&mut self) -> Result<()> {
        let capacities = fitting(&self.engine.needs(), self.datapath.capacities(), &self.growth.most);
        // One generation after the other.
        let Some(capacities) = capacities.filter(|_| !self.datapath.is_taking_over()) else { return Ok(()) };
        info!(?capacities, "there is more than the maps have room for; making larger ones");
        let next = self.datapath.load_next(capacities)();
        match next.map_err(Into::into).and_then(|next| self.put_in_place(next)) {
            Ok((last, _)) => {
                if last.is_unused() {
                    self.replace_unused(last)?;
                }
                self.metrics.count_growth();
                self.follow_datapath()
            }
            Err(error) => {
                self.metrics.count_growth_failed();
                self.growth.failed(&error);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dataplane::MapFill,
        model::Family,
        plan::{Largest, Slots},
    };

    #[test]
    fn what_is_needed_fits_at_once_if_it_may() {
        let configured = Capacities { backends: 1_000, frontends: 100, ..Capacities::default() };
        let needs = |backends, frontends| Needs { backends, frontends, ..Needs::default() };
        let limits = configured.most(0);
        let fitting = |needs, present| fitting(&needs, present, &limits);
        assert_eq!(fitting(needs([799, 0], [79, 79]), configured), None);
        let larger = fitting(needs([5, 2_000], [80, 0]), configured);
        assert_eq!(larger, Some(Capacities { backends: 4_000, frontends: 200, ..configured }));
        let most = fitting(needs([1_000_000, 0], [0, 0]), configured);
        assert_eq!(most, Some(Capacities { backends: 16_000, ..configured }));
        assert_eq!(fitting(needs([1_000_000, 0], [0, 0]), most.unwrap_or(configured)), None);
    }

    #[test]
    fn a_single_service_fits_at_once() {
        let begin = Capacities::default();
        let needs = |largest| Needs { largest, backends: [10_000, 0], ..Needs::default() };
        let fitting = |largest| fitting(&needs(largest), begin, &begin.most(0));
        assert_eq!(fitting(Largest { backends: 8_192, ..Largest::default() }), None);
        let larger = Capacities { backends: 2 * begin.backends, ..begin };
        assert_eq!(fitting(Largest { backends: 8_193, ..Largest::default() }), Some(larger));
        assert_eq!(fitting(Largest { backends: 20_000_000, ..Largest::default() }), None, "it never will");
    }

    #[test]
    fn a_large_cluster_fits_at_once_by_default() {
        let begin = Capacities::default();
        let slots = [Slots { all: 500_000, largest_table: 0 }; 2];
        let needs = Needs {
            services: 50_000,
            frontends: [100_000; 2],
            backends: [500_000; 2],
            slots,
            ..Needs::default()
        };
        let fitting = fitting(&needs, begin, &begin.most(0));
        let larger = Capacities {
            services: 65_536,
            frontends: 131_072,
            backends: 1_048_576,
            slots: 1_048_576,
            ..begin
        };
        assert_eq!(fitting, Some(larger));
    }

    /// The size of `slots` with so many equal tables.
    fn with_tables(count: usize, size: usize) -> u32 {
        let begin = Capacities::default();
        let slots = [Slots { all: count * size, largest_table: size }, Slots::default()];
        fitting(&Needs { slots, ..Needs::default() }, begin, &begin.most(0)).unwrap_or(begin).slots
    }

    #[test]
    fn tables_have_their_size_from_the_first_on() {
        assert_eq!(with_tables(1, 16_411), 131_072);
        assert_eq!(with_tables(4, 16_411), 131_072);
        assert_eq!(with_tables(5, 16_411), 262_144, "a table that is made anew would not fit");
        assert_eq!(with_tables(1, 40_009), 262_144, "no table has more than a quarter");
        assert_eq!(with_tables(100, 16_411), 4_194_304);
        assert_eq!(with_tables(100_000, 16_411), 33_554_432, "as large as it may become");
    }

    fn most() -> Capacities {
        Capacities::default().most(0)
    }

    #[test]
    fn maps_grow_for_a_service_that_lacks_room_if_it_will_find_it() {
        let lacking = |rows| Pressure { lacking: [(MapName::Frontends, rows)].into(), ..Pressure::default() };
        let largest = most().frontends as usize;
        for (rows, full) in
            [(0, &[MapName::Frontends][..]), (largest / 2, &[MapName::Frontends]), (largest, &[])]
        {
            assert_eq!(too_full(&lacking(rows), &most()), full, "{rows}");
        }
        let fixed = Pressure { lacking: [(MapName::Settings, 0)].into(), ..Pressure::default() };
        assert!(too_full(&fixed, &most()).is_empty());
    }

    fn fill(map: MapName, family: Family, rows: usize) -> MapFill {
        MapFill { map, family: Some(family), rows, transient: 0, capacity: 100 }
    }

    #[test]
    fn full_maps_are_told_once() {
        let maps = vec![
            fill(MapName::Frontends, Family::V4, 79),
            fill(MapName::Conntrack, Family::V4, 80),
            fill(MapName::Affinity, Family::V4, 80),
            fill(MapName::Conntrack, Family::V6, 99),
        ];
        let pressure = Pressure { maps, ..Pressure::default() };
        assert_eq!(too_full(&pressure, &most()), [MapName::Conntrack, MapName::Affinity]);
        let mut flooded = pressure.clone();
        flooded.maps.iter_mut().for_each(|fill| fill.transient = 50);
        assert_eq!(too_full(&flooded, &most()), [], "what gives way needs no larger map");
        assert_eq!(
            too_full(&Pressure { reduced_tables: 1, ..Pressure::default() }, &most()),
            [MapName::Slots]
        );
    }

    #[test]
    fn slots_grow_before_a_table_would_change_its_size() {
        let pressure = |slots_for_tables| Pressure {
            maps: vec![fill(MapName::Slots, Family::V4, 60)],
            slots_for_tables,
            ..Pressure::default()
        };
        assert!(too_full(&pressure(100), &most()).is_empty());
        assert_eq!(too_full(&pressure(101), &most()), [MapName::Slots]);
    }
}

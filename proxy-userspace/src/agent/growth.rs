//! Maps that fill up are given twice the room while traffic flows: a map cannot change its size,
//! so a generation with larger ones takes over.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::Instant,
};
use tracing::{info, warn};

use super::{Agent, Sweeper, startup::Logs};
use crate::{
    dataplane::{MapName, Pressure, Reconciler},
    kernel::{Capacities, Datapath, KernelError, KernelMaps},
};

/// From this level on a map is too full.
const HIGH: f64 = 0.8;
/// Pause after an attempt that failed: it costs the verifier's work and the memory of all maps.
const PAUSE: Duration = Duration::from_secs(60);

/// The next generation, while its programs are being loaded.
pub(super) struct Growth {
    configured: Capacities,
    loading: Option<JoinHandle<Result<Datapath, KernelError>>>,
    not_before: Instant,
    /// At its largest, to say so once.
    exhausted: bool,
}

impl Growth {
    /// Nothing is too full yet. `configured` is where growth begins.
    pub(super) fn new(configured: Capacities) -> Self {
        Self { configured, loading: None, not_before: Instant::now(), exhausted: false }
    }

    /// Takes in the levels after a sweep; begins to load programs with larger maps if they are needed.
    pub(super) fn look(&mut self, pressure: &Pressure, datapath: &Datapath) {
        if self.loading.is_some() || Instant::now() < self.not_before {
            return;
        }
        let full = too_full(pressure);
        if full.is_empty() {
            self.exhausted = false;
            return;
        }
        let Some(capacities) = datapath.capacities().grown(&full, &self.configured) else {
            if !std::mem::replace(&mut self.exhausted, true) {
                warn!(maps = names(&full), "maps are full and as large as they may grow (maps)");
            }
            return;
        };
        info!(maps = names(&full), "maps are filling up; making larger ones");
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

fn adopt(datapath: &Datapath) -> Result<(KernelMaps, Reconciler)> {
    let mut maps = datapath.maps()?;
    let reconciler = Reconciler::adopt(&mut maps)?;
    Ok((maps, reconciler))
}

fn too_full(pressure: &Pressure) -> Vec<MapName> {
    let full = pressure.maps.iter().filter(|fill| fill.level() >= HIGH).map(|fill| fill.map);
    let mut full: Vec<_> = full.collect();
    if pressure.reduced_tables > 0 {
        full.push(MapName::Slots);
    }
    full.dedup();
    full
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

    fn replace_datapath(&mut self, mut next: Datapath) -> Result<()> {
        let start = Instant::now();
        let opened = next.inherit().map_err(Into::into).and_then(|()| adopt(&next));
        let (maps, reconciler) = opened.inspect_err(|_| next.abort_handover())?;
        let last_maps = std::mem::replace(&mut self.maps, maps);
        let last = std::mem::replace(&mut self.datapath, next);
        self.engine.readopt(reconciler);
        let synced = self.engine.sync(&mut self.maps);
        if let Err(error) = self.go_into_service() {
            if !self.datapath.is_taking_over() {
                (self.datapath, self.maps) = (last, last_maps);
                self.engine.readopt(Reconciler::adopt(&mut self.maps)?);
            }
            return Err(error);
        }
        self.sweeper = Sweeper::of(&self.datapath)?;
        self.logs = Logs::follow(&mut self.datapath);
        self.written(synced, start);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dataplane::MapFill, model::Family};

    #[test]
    fn full_maps_are_told_once() {
        let fill = |map, family, rows| MapFill { map, family: Some(family), rows, capacity: 100 };
        let maps = vec![
            fill(MapName::Frontends, Family::V4, 79),
            fill(MapName::Conntrack, Family::V4, 80),
            fill(MapName::Conntrack, Family::V6, 99),
        ];
        let pressure = Pressure { maps, ..Pressure::default() };
        assert_eq!(too_full(&pressure), [MapName::Conntrack]);
        assert_eq!(too_full(&Pressure { reduced_tables: 1, ..Pressure::default() }), [MapName::Slots]);
    }
}

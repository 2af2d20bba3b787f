//! How many rows maps are to have room for, given what they hold.

use std::io;

use nix::unistd::{SysconfVar, sysconf};
use proxy_common::maps;

use super::{bpf::RawMap, carry::carry_error, error::KernelError, object::Capacities, pins::Pins};
use crate::dataplane::MapName;

/// A capacity and the maps that have it.
struct Limit {
    name: &'static str,
    /// The maps, each with the rows that it has for one row of the capacity.
    maps: &'static [(&'static str, u32)],
    get: fn(&Capacities) -> u32,
    set: fn(&mut Capacities, u32),
    /// The number of rows to which it grows by itself where no less than the default is configured; nothing
    /// where its memory is limited.
    most: Option<u32>,
    /// The part of the wanted size, as a divisor, of which more must be in use for a larger map to keep
    /// its size.
    kept_from: u32,
}

macro_rules! limits {
    ($($field:ident: $most:expr, kept from 1 / $kept_from:literal, [$($map:literal * $rows:literal),+];)+) => {
        const LIMITS: &[Limit] = &[$(Limit {
            name: stringify!($field),
            maps: &[$(($map, $rows)),+],
            get: |c| c.$field,
            set: |c, to| c.$field = to,
            most: $most,
            kept_from: $kept_from,
        }),+];
    };
}

// Lookup tables leave slots free: a map that was made for them is never much fuller than a quarter of
// the size before.
limits! {
    frontends: Some(maps::frontends::MOST), kept from 1 / 2, ["frontends_v4" * 1, "frontends_v6" * 1];
    backends: Some(maps::backends::MOST), kept from 1 / 2,
        ["backends_v4" * 1, "backends_v6" * 1, "opened_v4" * 1, "opened_v6" * 1, "traffic_v4" * 2, "traffic_v6" * 2];
    slots: Some(maps::slots::MOST), kept from 1 / 4, ["slots_v4" * 1, "slots_v6" * 1];
    conntrack: None, kept from 1 / 2, ["conntrack_v4" * 1, "conntrack_v6" * 1];
    services: Some(maps::services::MOST), kept from 1 / 2, ["services" * 1];
    affinity: Some(maps::affinity::MOST), kept from 1 / 2, ["affinity_v4" * 1, "affinity_v6" * 1];
    source_ranges: Some(maps::source_ranges::MOST), kept from 1 / 2, ["source_ranges_v4" * 1, "source_ranges_v6" * 1];
}

/// The most that maps grow to by themselves, as a multiple of what is configured, where that is less than
/// the default or very much. Rows are small; a map that has grown so far is filled by something that more
/// room does not cure.
const GROWTH: u32 = 16;

/// Free rows of an LRU map that each CPU keeps to itself (`LOCAL_FREE_TARGET` in the kernel's
/// `bpf_lru_list.c`). The kernel evicts rows while other CPUs have such rows left.
const FREE_PER_CPU: u32 = 128;

impl Limit {
    /// The one that a map has; nothing if it does not grow.
    fn of(map: MapName) -> Option<&'static Self> {
        let name = match map {
            MapName::Frontends => "frontends",
            // Counters are kept by service and backend.
            MapName::Backends | MapName::Opened => "backends",
            MapName::Slots => "slots",
            MapName::Conntrack => "conntrack",
            MapName::Services => "services",
            MapName::Affinity => "affinity",
            MapName::SourceRanges => "source_ranges",
            _ => return None,
        };
        LIMITS.iter().find(|limit| limit.name == name)
    }

    /// The number of rows to which maps grow by themselves. Whoever configures less than the default wants
    /// small maps.
    fn grows_to(&self, most: u32, begin: u32) -> u32 {
        let multiple = begin.saturating_mul(GROWTH);
        if begin < (self.get)(&Capacities::default()) { multiple } else { multiple.max(most) }
    }

    /// What may be had of `wanted` after the maps of `current`.
    fn after(&self, wanted: u32, current: &Pins) -> Result<u32, KernelError> {
        let (mut room, mut used) = (0, 0);
        for (name, rows) in self.maps {
            let error = |error: io::Error| carry_error(name, error);
            // The types of rows, which not everybody may ask for, do not matter here.
            let Some(map) = RawMap::open_if_there(&current.map(name)).map_err(error)? else { continue };
            let has = map.capacity() / rows;
            room = room.max(has);
            if has > wanted {
                used = used.max(map.used().map_err(error)?.div_ceil(*rows));
            }
        }
        if !keeps_room(wanted, room, used, self.kept_from) {
            return Ok(wanted);
        }
        tracing::info!(
            map = self.name,
            configured = wanted,
            capacity = room,
            used,
            "keeping the room that the map has: too much of it is in use for the configured size"
        );
        Ok(room)
    }
}

impl Capacities {
    /// Rows a map has room for; nothing if that cannot be changed.
    pub fn room(&self, map: MapName) -> Option<u32> {
        Limit::of(map).map(|limit| (limit.get)(self))
    }

    /// The room to which maps grow by themselves that begin with this, and have no more rows of
    /// `conntrack` than so many.
    #[must_use]
    pub fn most(&self, conntrack: u32) -> Self {
        let mut all = Self { conntrack: conntrack.max(self.conntrack), ..*self };
        for limit in LIMITS {
            if let Some(most) = limit.most {
                (limit.set)(&mut all, limit.grows_to(most, (limit.get)(self)));
            }
        }
        all
    }

    /// The same with twice the room in each of `full`, at most that of `most`. Nothing if that is no more
    /// than before.
    pub fn grown(&self, full: &[MapName], most: &Self) -> Option<Self> {
        let mut grown = *self;
        for limit in full.iter().filter_map(|map| Limit::of(*map)) {
            let now = (limit.get)(self);
            (limit.set)(&mut grown, now.saturating_mul(2).min((limit.get)(most)).max(now));
        }
        (grown != *self).then_some(grown)
    }

    /// The same, with as much room for affinity as a machine of this size needs at the least.
    #[must_use]
    pub fn on_this_machine(self) -> Self {
        self.on_cpus(cpus())
    }

    /// A fifth of an LRU map may lie with the CPUs: then the kernel does not evict before four fifths are
    /// in use, which is when the map grows.
    fn on_cpus(self, cpus: u32) -> Self {
        let least = cpus.saturating_mul(5 * FREE_PER_CPU);
        Self { affinity: self.affinity.max(least), ..self }
    }

    /// What may be had of these after `current`: a map that has grown stays as it is until it has
    /// become much emptier, and none becomes smaller than what it holds.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(super) fn after(&self, current: &Pins) -> Result<Self, KernelError> {
        let mut settled = *self;
        for limit in LIMITS {
            (limit.set)(&mut settled, limit.after((limit.get)(self), current)?);
        }
        Ok(settled)
    }
}

/// The capacity with which an LRU map holds so many rows on this machine, whatever CPUs write them.
pub(super) fn lru_capacity(rows: u32) -> u32 {
    rows + cpus() * FREE_PER_CPU
}

fn cpus() -> u32 {
    let cpus = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    cpus.and_then(|cpus| u32::try_from(cpus).ok()).unwrap_or(1)
}

/// Whether a map with this much room keeps it, although less is wanted.
fn keeps_room(wanted: u32, room: u32, used: u32, kept_from: u32) -> bool {
    room > wanted && used > wanted / kept_from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_shrink_only_when_they_are_empty_enough() {
        assert!(!keeps_room(1000, 1000, 900, 2), "nothing to keep");
        assert!(!keeps_room(2000, 1000, 900, 2), "it grows");
        assert!(keeps_room(1000, 4000, 1200, 2), "the rows would not fit");
        assert!(keeps_room(1000, 4000, 600, 2), "it would soon be full again");
        assert!(!keeps_room(1000, 4000, 500, 2));
        assert!(keeps_room(1000, 4000, 251, 4), "tables for which it was made larger");
    }

    #[test]
    fn small_maps_double_up_to_a_multiple_of_what_is_configured() {
        let configured = Capacities { frontends: 100, backends: 100, ..Capacities::default() };
        let most = configured.most(CONNTRACK);
        let grown = configured.grown(&[MapName::Frontends], &most).expect("room to grow");
        assert_eq!((grown.frontends, grown.backends), (200, 100));
        let large = Capacities { frontends: 1500, ..configured };
        let grown = large.grown(&[MapName::Frontends], &most).expect("room to grow");
        assert_eq!(grown.frontends, 1600);
        assert_eq!(grown.grown(&[MapName::Frontends], &most), None);
        assert_eq!(configured.grown(&[MapName::Settings], &most), None);
    }

    #[test]
    fn connections_have_what_their_memory_allows() {
        let begin = Capacities { conntrack: 1_000, ..Capacities::default() };
        let full = [MapName::Conntrack];
        let most = begin.most(2_500);
        let grown = begin.grown(&full, &most).expect("room to grow");
        let largest = grown.grown(&full, &most).expect("room to grow");
        assert_eq!((grown.conntrack, largest.conntrack), (2_000, 2_500));
        assert_eq!(largest.grown(&full, &most), None);
        assert_eq!(begin.grown(&full, &begin.most(0)), None, "what is there stays");
    }

    const CONNTRACK: u32 = 1_000_000;

    #[test]
    fn maps_that_begin_small_grow_as_far_as_ever() {
        let most = Capacities {
            frontends: 2_097_152,
            backends: 4_194_304,
            slots: 33_554_432,
            conntrack: CONNTRACK,
            services: 2_097_152,
            affinity: 2_097_152,
            source_ranges: 1_048_576,
        };
        assert_eq!(Capacities::default().most(CONNTRACK), most);
        let much = Capacities { frontends: 131_073, ..Capacities::default() };
        assert_eq!(much.most(CONNTRACK), Capacities { frontends: 16 * 131_073, ..most });
        let more_than_default = Capacities { slots: 131_073, ..Capacities::default() };
        assert_eq!(more_than_default.most(CONNTRACK), most);
    }

    #[test]
    fn counters_grow_with_backends() {
        let begin = Capacities::default();
        let most = begin.most(CONNTRACK);
        let grown = begin.grown(&[MapName::Opened, MapName::Backends], &most).expect("room to grow");
        assert_eq!(grown, Capacities { backends: 2 * begin.backends, ..begin });
    }

    #[test]
    fn many_cpus_need_more_room_for_affinity() {
        let begin = Capacities::default();
        assert_eq!(begin.on_cpus(2), begin);
        assert_eq!(begin.on_cpus(64), Capacities { affinity: 40_960, ..begin });
        let configured = Capacities { affinity: 1_000_000, ..begin };
        assert_eq!(configured.on_cpus(64), configured);
    }
}

//! How many rows maps are to have room for, given what they hold.

use std::io;

use super::{bpf::RawMap, carry::carry_error, error::KernelError, object::Capacities, pins::Pins};
use crate::dataplane::MapName;

/// A capacity and the maps that have it.
struct Limit {
    name: &'static str,
    maps: [&'static str; 2],
    get: fn(&Capacities) -> u32,
    set: fn(&mut Capacities, u32),
}

macro_rules! limits {
    ($($field:ident: $name:literal, [$first:literal, $second:literal];)+) => {
        const LIMITS: &[Limit] = &[$(Limit {
            name: $name,
            maps: [$first, $second],
            get: |c| c.$field,
            set: |c, to| c.$field = to,
        }),+];
    };
}

limits! {
    frontends: "frontends", ["frontends_v4", "frontends_v6"];
    backends: "backends", ["backends_v4", "backends_v6"];
    slots: "slots", ["slots_v4", "slots_v6"];
    conntrack: "conntrack", ["conntrack_v4", "conntrack_v6"];
    services: "services", ["services", "services"];
    affinity: "affinity", ["affinity_v4", "affinity_v6"];
}

/// The most that maps grow to by themselves, as a multiple of what is configured. Rows are small;
/// a map that has grown so far is filled by something that more room does not cure.
pub const GROWTH: u32 = 16;

impl Limit {
    /// The one that a map has; nothing if it does not grow.
    fn of(map: MapName) -> Option<&'static Self> {
        let name = match map {
            MapName::Frontends => "frontends",
            MapName::Backends => "backends",
            MapName::Slots => "slots",
            MapName::Conntrack => "conntrack",
            MapName::Services => "services",
            _ => return None,
        };
        LIMITS.iter().find(|limit| limit.name == name)
    }
}

impl Capacities {
    /// Rows a map has room for; nothing if that cannot be changed.
    pub fn room(&self, map: MapName) -> Option<u32> {
        Limit::of(map).map(|limit| (limit.get)(self))
    }

    /// The same with twice the room, at most [`GROWTH`] times `configured`, in each of `full`.
    /// Nothing if that is no more than before.
    pub fn grown(&self, full: &[MapName], configured: &Self) -> Option<Self> {
        let mut grown = *self;
        for limit in full.iter().filter_map(|map| Limit::of(*map)) {
            let most = (limit.get)(configured).saturating_mul(GROWTH);
            let now = (limit.get)(self);
            (limit.set)(&mut grown, now.saturating_mul(2).min(most).max(now));
        }
        (grown != *self).then_some(grown)
    }

    /// What may be had of these after `current`: a map that has grown stays as it is until it has
    /// become much emptier, and none becomes smaller than what it holds.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(super) fn after(&self, current: &Pins) -> Result<Self, KernelError> {
        let mut settled = *self;
        for limit in LIMITS {
            let wanted = (limit.get)(self);
            let (mut room, mut used) = (0, 0);
            for name in limit.maps {
                let error = |error: io::Error| carry_error(name, error);
                // The types of rows, which not everybody may ask for, do not matter here.
                let Some(map) = RawMap::open_if_there(&current.map(name)).map_err(error)? else { continue };
                room = room.max(map.capacity());
                if room > wanted {
                    used = used.max(map.used().map_err(error)?);
                }
            }
            if keeps_room(wanted, room, used) {
                tracing::info!(
                    map = limit.name,
                    configured = wanted,
                    capacity = room,
                    used,
                    "keeping the room that the map has: too much of it is in use for the configured size"
                );
                (limit.set)(&mut settled, room);
            }
        }
        Ok(settled)
    }
}

/// Whether a map with this much room keeps it, although less is wanted.
fn keeps_room(wanted: u32, room: u32, used: u32) -> bool {
    room > wanted && used > wanted / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_shrink_only_when_they_are_empty_enough() {
        assert!(!keeps_room(1000, 1000, 900), "nothing to keep");
        assert!(!keeps_room(2000, 1000, 900), "it grows");
        assert!(keeps_room(1000, 4000, 1200), "the rows would not fit");
        assert!(keeps_room(1000, 4000, 600), "it would soon be full again");
        assert!(!keeps_room(1000, 4000, 500));
    }

    #[test]
    fn maps_double_up_to_a_limit() {
        let configured = Capacities { frontends: 100, backends: 100, ..Capacities::default() };
        let grown = configured.grown(&[MapName::Frontends], &configured).expect("room to grow");
        assert_eq!((grown.frontends, grown.backends), (200, 100));
        let most = Capacities { frontends: 1500, ..configured };
        let grown = most.grown(&[MapName::Frontends], &configured).expect("room to grow");
        assert_eq!(grown.frontends, 1600);
        assert_eq!(grown.grown(&[MapName::Frontends], &configured), None);
        assert_eq!(configured.grown(&[MapName::Settings], &configured), None);
    }
}

//! What has come in and is not written yet, service by service, to tell afterwards how long
//! it took. No clock: every moment comes with the change.

use std::{collections::HashMap, time::Instant};

use jiff::Timestamp;

use crate::model::{AddressType, Change, Dirty, Family, ObjectName};

/// Services for which room is kept.
const ROOM: usize = 1_024;

/// Changes that wait for their rows.
#[derive(Debug, Default)]
pub(in crate::agent) struct Waiting {
    services: HashMap<ObjectName, Changes>,
    seen: Counts,
}

/// What waits for the rows of one service.
#[derive(Debug, Default)]
pub(in crate::agent) struct Changes {
    /// When the events came; those of the first lists are left out.
    pub(super) arrived: Vec<Instant>,
    /// When what they tell happened, as far as the API server says.
    pub(super) triggers: Vec<(Family, Timestamp)>,
    pub(super) endpoints: u64,
    pub(super) of_service: bool,
}

/// Numbers of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) endpoints: u64,
    pub(super) services: u64,
}

/// A change, as far as this is about it.
pub(in crate::agent) enum Kind {
    Service,
    /// With the time of what triggered it.
    Slice(Option<(Family, Timestamp)>),
    SliceGone,
    Other,
}

impl Kind {
    /// `trigger` finds the time by the name of a slice.
    pub(in crate::agent) fn of(
        change: &Change,
        trigger: impl FnOnce(&ObjectName) -> Option<Timestamp>,
    ) -> Self {
        match change {
            Change::Service(_) | Change::ServiceGone(_) | Change::ServiceList(_) => Kind::Service,
            Change::Slice(slice) => Kind::Slice(match slice.address_type {
                AddressType::Ip(family) => trigger(&slice.name).map(|at| (family, at)),
                AddressType::Fqdn => None,
            }),
            Change::SliceGone(_) | Change::SliceList(_) => Kind::SliceGone,
            _ => Kind::Other,
        }
    }
}

impl Waiting {
    /// Takes in a change and what it made stale. `arrived` is absent for the first lists.
    pub(in crate::agent) fn note(&mut self, kind: Kind, dirty: &Dirty, arrived: Option<Instant>) {
        match kind {
            Kind::Service => self.seen.services += 1,
            Kind::Slice(_) | Kind::SliceGone => self.seen.endpoints += 1,
            Kind::Other => (),
        }
        for service in &dirty.services {
            let changes = self.services.entry(service.clone()).or_default();
            changes.arrived.extend(arrived);
            match kind {
                Kind::Service => changes.of_service = true,
                Kind::Slice(trigger) => {
                    changes.endpoints += 1;
                    changes.triggers.extend(trigger);
                }
                // What triggered the change before is not what removes the slice.
                Kind::SliceGone => {
                    changes.endpoints += 1;
                    changes.triggers.clear();
                }
                Kind::Other => (),
            }
        }
    }

    /// Everything of services that no longer wait.
    pub(in crate::agent) fn written(&mut self, waits: impl Fn(&ObjectName) -> bool) -> Vec<Changes> {
        let written = self.services.extract_if(|service, _| !waits(service));
        let written = written.map(|(_, changes)| changes).collect();
        // After the first lists there is room for all services, of which few change at a time.
        self.services.shrink_to(ROOM);
        written
    }

    /// Changes that came in so far.
    pub(super) fn seen(&self) -> Counts {
        self.seen
    }

    /// Of these, changes of slices, and services with a change, that wait.
    pub(super) fn pending(&self) -> Counts {
        let endpoints = self.services.values().map(|changes| changes.endpoints).sum();
        let services = self.services.values().filter(|changes| changes.of_service).count() as u64;
        Counts { endpoints, services }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirty(names: &[&str]) -> Dirty {
        let services = names.iter().map(|name| ObjectName::new("ns", *name)).collect();
        Dirty { services, ..Dirty::default() }
    }

    #[test]
    fn what_is_written_no_longer_waits() {
        let mut waiting = Waiting::default();
        let now = Instant::now();
        waiting.note(Kind::Service, &dirty(&["a", "b"]), None);
        waiting.note(Kind::Slice(Some((Family::V4, Timestamp::UNIX_EPOCH))), &dirty(&["a"]), Some(now));
        waiting.note(Kind::Slice(None), &dirty(&[]), Some(now));
        waiting.note(Kind::Other, &dirty(&["c"]), Some(now));
        assert_eq!(waiting.seen(), Counts { endpoints: 2, services: 1 });
        assert_eq!(waiting.pending(), Counts { endpoints: 1, services: 2 });
        let written = waiting.written(|service| &*service.name == "b");
        let triggers: usize = written.iter().map(|changes| changes.triggers.len()).sum();
        let arrived: usize = written.iter().map(|changes| changes.arrived.len()).sum();
        assert_eq!((written.len(), triggers, arrived), (2, 1, 2));
        assert_eq!(waiting.pending(), Counts { endpoints: 0, services: 1 });
    }

    #[test]
    fn a_slice_that_goes_takes_its_triggers_along() {
        let mut waiting = Waiting::default();
        waiting.note(Kind::Slice(Some((Family::V6, Timestamp::UNIX_EPOCH))), &dirty(&["a"]), None);
        waiting.note(Kind::SliceGone, &dirty(&["a"]), None);
        let written = waiting.written(|_| false);
        assert!(written[0].triggers.is_empty());
    }
}

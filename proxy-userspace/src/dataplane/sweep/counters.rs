//! What connections carry, by who serves them: rows of `conntrack` count their own packets,
//! and what they counted is kept in `traffic` when they go.

use std::collections::HashMap;

use proxy_common::maps::counters::{CounterKey, Traffic};

use crate::dataplane::{FamilyMaps, MapAddr, MapError};

/// What one backend did under one kind of frontend of a service port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Connections opened so far, those of sockets included.
    pub opened: u64,
    /// Of these, connections whose packets are rewritten and which are not over.
    pub open: u64,
    /// What has been carried in all, by packets that are rewritten.
    pub traffic: Traffic,
}

/// Counts of a family.
pub(in crate::dataplane) type Counts = HashMap<CounterKey, Served>;

/// Reads what was counted of connections opened, and of those that are over.
pub(super) fn read<A: MapAddr>(maps: &impl FamilyMaps<A>) -> Result<Counts, MapError> {
    let mut counts = Counts::new();
    for (key, opened) in maps.opened()? {
        counts.entry(key).or_default().opened = opened;
    }
    for (key, traffic) in maps.traffic()? {
        counts.entry(key.by_anybody()).or_default().traffic += traffic;
    }
    Ok(counts)
}

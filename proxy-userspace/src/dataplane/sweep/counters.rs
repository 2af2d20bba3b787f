//! What connections carry, by who serves them: rows of `conntrack` count their own packets,
//! and what they counted is kept in `traffic` when they go.

use std::collections::HashMap;

use proxy_common::maps::{
    conntrack::{CtEntry, Role},
    counters::{CounterKey, Traffic},
};

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

/// Whose row it is; none for one that netfilter's connection has.
pub(super) fn key<A>(entry: &CtEntry<A>) -> Option<CounterKey> {
    let CtEntry { service, backend, kind, .. } = *entry;
    (service != 0).then(|| CounterKey { service, backend, kind: u32::from(kind) })
}

/// What a row adds to the traffic of its connection. The rows of second steps count the same
/// packets once more.
pub(super) fn traffic<A>(entry: &CtEntry<A>) -> Traffic {
    let CtEntry { packets, bytes, .. } = *entry;
    let role = Role(entry.role);
    if role.is_primary() {
        Traffic { in_packets: packets, in_bytes: bytes, ..Traffic::default() }
    } else if role == Role::REV_DNAT || role == Role::REV_HOST {
        Traffic { out_packets: packets, out_bytes: bytes, ..Traffic::default() }
    } else {
        Traffic::default()
    }
}

/// Reads what was counted of connections opened, and of those that are over.
pub(super) fn read<A: MapAddr>(maps: &impl FamilyMaps<A>) -> Result<Counts, MapError> {
    let mut counts = Counts::new();
    for (key, opened) in maps.opened()? {
        counts.entry(key).or_default().opened = opened;
    }
    for (key, traffic) in maps.traffic()? {
        counts.entry(key).or_default().traffic = traffic;
    }
    Ok(counts)
}

//! Refused packets, as metrics: read from the map whenever somebody asks.

use std::collections::BTreeMap;

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use proxy_common::DropReason;

use super::{KernelError, pinned::PinnedMaps, pins::Pins};
use crate::{dataplane::service_name, meter::Meter};

/// The metrics of this module.
pub const DROPS: [Meter; 2] = [
    Meter::counter(
        "shunt_drops_total",
        &["reason"],
        "Packets and connections that were refused, by reason, over all CPUs",
    ),
    Meter::counter(
        "shunt_service_drops_total",
        &["namespace", "service", "port", "protocol", "reason"],
        "The same by service port; those of no service that is known are under an empty name",
    ),
];

/// Series of services; what else there is, is under the name `other`.
const SERIES: usize = 2_000;

/// Shows the counters of the map `drops` of the generation in service.
#[derive(Debug)]
pub struct DropMetrics {
    pins: Pins,
}

impl DropMetrics {
    /// The counters below `pins`.
    pub fn new(pins: Pins) -> Self {
        Self { pins }
    }
}

impl Collector for DropMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        // Without the map there is nothing to tell; the other metrics still are.
        let drops = PinnedMaps::open(self.pins.clone()).and_then(|maps| maps.drops()).unwrap_or_default();
        let labelled = drops.into_iter().map(|(reason, count)| (DROPS[0].with([reason.name()]), count));
        DROPS[0].counters(&mut encoder, labelled)?;
        let by_service = PinnedMaps::open(self.pins.clone()).and_then(|maps| by_service(&maps));
        let rows = by_service.unwrap_or_default().into_iter();
        let labelled = rows.map(|(labels, count)| (DROPS[1].with(labels), count));
        DROPS[1].counters(&mut encoder, labelled)
    }
}

/// Values of the labels, and counts.
fn by_service(maps: &PinnedMaps) -> Result<BTreeMap<[String; 5], u64>, KernelError> {
    let mut counts = BTreeMap::new();
    let mut rows = maps.service_drops()?;
    // Always the same ones have a series.
    rows.sort_unstable_by_key(|(key, _)| *key);
    let names = maps.services_of(&rows.iter().take(SERIES).map(|(key, _)| key.service).collect())?;
    for (at, (key, count)) in rows.into_iter().enumerate() {
        let reason = DropReason::ALL.iter().find(|reason| **reason as u32 == key.reason);
        let reason = reason.map_or("unknown", |reason| reason.name());
        let named = names.get(&key.service).and_then(service_name);
        let labels = match named {
            _ if at >= SERIES => ["", "other", "", "", reason].map(str::to_owned),
            Some((name, protocol)) => {
                let (service, port) = (name.service, name.port);
                [&*service.namespace, &*service.name, &*port, protocol.name(), reason].map(str::to_owned)
            }
            None => ["", "", "", "", reason].map(str::to_owned),
        };
        *counts.entry(labels).or_default() += count;
    }
    Ok(counts)
}

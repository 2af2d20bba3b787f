//! Refused packets, as metrics: read from the map whenever somebody asks.

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::{pinned::PinnedMaps, pins::Pins};
use crate::meter::Meter;

/// The metrics of this module.
pub const DROPS: [Meter; 1] = [Meter::counter(
    "shunt_drops_total",
    &["reason"],
    "Packets and connections that were refused, by reason, over all CPUs",
)];

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
        DROPS[0].counters(&mut encoder, labelled)
    }
}

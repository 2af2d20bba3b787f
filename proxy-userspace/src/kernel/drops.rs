//! Refused packets, as metrics: read from the map whenever somebody asks.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
};

use super::{pinned::PinnedMaps, pins::Pins};

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
        let help = "Packets and connections that were refused, by reason, over all CPUs";
        let mut family = encoder.encode_descriptor("drops", help, None, MetricType::Counter)?;
        // Without the map there is nothing to tell; the other metrics still are.
        let drops = PinnedMaps::open(self.pins.clone()).and_then(|maps| maps.drops());
        for (reason, count) in drops.unwrap_or_default() {
            let labels = [("reason", reason.name())];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

//! Refused packets, as metrics: read from the map whenever somebody asks.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
};

use super::{KernelError, pinned::PinnedMaps, pins::Pins};

/// Shows the counters of the map `drops`.
#[derive(Debug)]
pub struct DropMetrics {
    maps: PinnedMaps,
}

impl DropMetrics {
    /// The counters below `pins`.
    ///
    /// # Errors
    /// When no agent has ever run with them.
    pub fn open(pins: Pins) -> Result<Self, KernelError> {
        Ok(Self { maps: PinnedMaps::open(pins)? })
    }
}

impl Collector for DropMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "Packets and connections that were refused, by reason, over all CPUs";
        let mut family = encoder.encode_descriptor("drops", help, None, MetricType::Counter)?;
        // Without the map there is nothing to tell; the other metrics still are.
        for (reason, count) in self.maps.drops().unwrap_or_default() {
            let labels = [("reason", reason.name())];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

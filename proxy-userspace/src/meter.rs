//! What a metric is called, what it counts, and which labels it has. Each module keeps a
//! table of its own with these, under the full names that a scraper sees, and registers by
//! it; `docs/metrics.md` is made of all tables. Nothing is counted or served here.

use std::fmt;

use prometheus_client::{
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, MetricEncoder,
    },
    metrics::{MetricType, TypedMetric, counter::ConstCounter, gauge::ConstGauge},
    registry::{Metric, Registry},
};

/// One metric: a name, its type, its labels, and a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// The name in full; that of a counter ends in `_total`.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it says, without a full stop.
    pub help: &'static str,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until the process ends.
    Counter,
    /// A level.
    Gauge,
    /// Counts of values by size.
    Histogram,
}

impl Kind {
    /// As `# TYPE` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }

    fn of_library(self) -> MetricType {
        match self {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        }
    }
}

impl Meter {
    /// A counter; `name` ends in `_total`.
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, labels, help }
    }

    /// A gauge.
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, labels, help }
    }

    /// A histogram.
    pub const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, labels, help }
    }

    /// The labels of one series, with these values in the order of the table.
    ///
    /// # Panics
    /// When the table has another number of labels.
    pub fn with<T, const N: usize>(&self, values: [T; N]) -> [(&'static str, T); N] {
        assert_eq!(self.labels.len(), N, "{} has other labels", self.name);
        let mut names = self.labels.iter();
        values.map(|value| (*names.next().unwrap_or(&""), value))
    }

    /// Makes a metric part of what is shown.
    pub fn register<M: Metric + TypedMetric>(&self, registry: &mut Registry, metric: M) {
        assert_eq!(M::TYPE.as_str(), self.kind.name(), "{} is of another type", self.name);
        registry.register(self.family(), self.help, metric);
    }

    /// Shows a value for each set of labels, as a collector does.
    pub fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        values: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result
    where
        ConstGauge<V>: EncodeMetric,
    {
        self.each(encoder, values.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value))))
    }

    /// The same for counters.
    pub fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        values: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result
    where
        ConstCounter<V>: EncodeMetric,
    {
        self.each(encoder, values.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value))))
    }

    fn each<L: EncodeLabelSet>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        mut metrics: impl Iterator<Item = (L, impl EncodeMetric)>,
    ) -> fmt::Result {
        let kind = self.kind.of_library();
        let mut family: MetricEncoder<'_> =
            encoder.encode_descriptor(self.family(), self.help, None, kind)?;
        if self.labels.is_empty() {
            // Without labels there are no braces either.
            return metrics.next().map_or(Ok(()), |(_, metric)| metric.encode(family));
        }
        for (labels, metric) in metrics {
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// The name of the metric family: encoders add the suffix of a counter themselves.
    fn family(&self) -> &'static str {
        match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            Kind::Gauge | Kind::Histogram => self.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_named_by_the_table() {
        let meter = Meter::gauge("x", &["map", "ip_family"], "Rows");
        assert_eq!(meter.with(["slots", "IPv4"]), [("map", "slots"), ("ip_family", "IPv4")]);
        assert_eq!(Meter::counter("y_total", &[], "").family(), "y");
        assert_eq!(Meter::gauge("y_total", &[], "").family(), "y_total");
    }

    #[test]
    #[should_panic(expected = "other labels")]
    fn a_series_has_every_label() {
        Meter::gauge("x", &["map"], "Rows").with(["slots", "IPv4"]);
    }
}

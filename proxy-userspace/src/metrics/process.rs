//! The process itself, under the names that every Prometheus client uses.

use procfs::{
    ProcResult, boot_time_secs, page_size,
    process::{LimitValue, Process},
    ticks_per_second,
};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};
use tracing::debug;

use crate::meter::{Kind, Meter};

const NONE: [(&str, &str); 0] = [];

/// The metrics of this module.
pub const PROCESS: [Meter; 6] = [
    Meter::counter(
        "process_cpu_seconds_total",
        &[],
        "Seconds of a processor, in user space and in the kernel",
    ),
    Meter::gauge("process_resident_memory_bytes", &[], "Memory in use"),
    Meter::gauge("process_virtual_memory_bytes", &[], "Address space in use"),
    Meter::gauge("process_open_fds", &[], "Descriptors in use"),
    Meter::gauge("process_max_fds", &[], "Descriptors there may be"),
    START,
];

const START: Meter = Meter::gauge("process_start_time_seconds", &[], "When the process began, in Unix time");

/// Shows all of the process.
pub(super) fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(WholeProcess));
}

/// Shows when it began.
pub(super) fn register_start(registry: &mut Registry) {
    registry.register_collector(Box::new(StartTime));
}

#[derive(Debug)]
struct WholeProcess;

#[derive(Debug)]
struct StartTime;

/// What `/proc` says about this process, in the order of the table. What it does not say is
/// left out; the other metrics still are there.
fn facts() -> ProcResult<[Option<f64>; 6]> {
    let process = Process::myself()?;
    let stat = process.stat()?;
    let seconds = |ticks: u64| ticks as f64 / ticks_per_second() as f64;
    let known = |what, fact: ProcResult<u64>| {
        let fact = fact.inspect_err(|error| debug!(%error, what, "not known of this process"));
        fact.ok().map(|fact| fact as f64)
    };
    let most = process.limits().map(|limits| match limits.max_open_files.soft_limit {
        LimitValue::Value(most) => most,
        LimitValue::Unlimited => u64::MAX,
    });
    Ok([
        Some(seconds(stat.utime + stat.stime)),
        Some((stat.rss * page_size()) as f64),
        Some(stat.vsize as f64),
        known("open descriptors", process.fd_count().map(|count| count as u64)),
        known("limit of descriptors", most),
        known("start of the system", boot_time_secs()).map(|boot| boot + seconds(stat.starttime)),
    ])
}

fn show(meters: &[Meter], encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let facts =
        facts().inspect_err(|error| debug!(%error, "nothing known of this process")).unwrap_or_default();
    for (meter, fact) in PROCESS.iter().zip(facts).filter(|(meter, _)| meters.contains(meter)) {
        let value = fact.map(|fact| (NONE, fact));
        match meter.kind {
            Kind::Counter => meter.counters(encoder, value)?,
            Kind::Gauge | Kind::Histogram => meter.gauges(encoder, value)?,
        }
    }
    Ok(())
}

impl Collector for WholeProcess {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        show(&PROCESS, &mut encoder)
    }
}

impl Collector for StartTime {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        show(&[START], &mut encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_is_known_here() {
        let facts = facts().unwrap();
        assert!(facts.iter().all(Option::is_some), "{facts:?}");
        assert!(facts[1] > Some(1_000_000.0) && facts[5] > Some(1.7e9), "{facts:?}");
    }
}

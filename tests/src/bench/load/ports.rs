//! Source ports over time.
//!
//! Connections go through a NodePort of the first node to a single backend on the second, and are
//! masqueraded: one connection after the other, for minutes, takes a source port towards the same
//! destination. There are 28,976 of them by default, used up within seconds, so that from then on each
//! connection needs one that an ended connection has had.
//!
//! A contender is under load without a pause but one: between samples of ten seconds there is a second
//! of `direct`. So each sample has a measure of the machine's speed right before and right after it, on a
//! machine whose speed changes from minute to minute. The second does not relieve the contender: what it
//! remembers of ended connections lasts for minutes. Contenders are not measured in turn, for there it would
//! rest for most of the time and could recover.

use std::collections::BTreeMap;

use anyhow::Result;

use super::results::{SAMPLES_PER_MINUTE, Sample, Span, Stretch};
use crate::bench::{
    ends::{Driven, Workload},
    field::Field,
    target::Path,
};

pub(super) const PATH: Path = Path::OutsideSingle;
/// Those that take a source port for each request.
pub(super) const WORKLOADS: [Workload; 2] = [Workload::TcpConnect, Workload::UdpFlow];

/// Of a sample.
const SECONDS: f64 = 60.0 / SAMPLES_PER_MINUTE as f64;
/// Of `direct`, between samples.
const INTERLUDE: f64 = 1.0;

/// A contender, and what it is compared with.
pub(super) struct Rivals<'a> {
    pub(super) contender: &'a mut Field,
    pub(super) direct: &'a mut Field,
}

impl Rivals<'_> {
    /// Keeps the contender under load for so many minutes. `tell` gets each of them when it is over.
    pub(super) fn measure(
        self,
        workload: Workload,
        minutes: u32,
        tell: &mut dyn FnMut(u32, &Span),
    ) -> Result<Stretch> {
        let Self { contender, direct } = self;
        let drops_before = contender.drops()?;
        let mut samples = Vec::new();
        let mut before = direct.drive(PATH, workload, INTERLUDE, None)?;
        for minute in 1..=minutes {
            for _ in 0..SAMPLES_PER_MINUTE {
                let driven = contender.drive(PATH, workload, SECONDS, None)?;
                let after = direct.drive(PATH, workload, INTERLUDE, None)?;
                samples.push(sample(&driven, [before, after]));
                before = after;
            }
            tell(minute, &Span::of(&samples[samples.len() - SAMPLES_PER_MINUTE..]));
        }
        let drops = contender.drops()?.map(|after| grown(&drops_before.unwrap_or_default(), after));
        Ok(Stretch { contender: contender.contender(), workload, samples, drops })
    }
}

fn sample(driven: &Driven, neighbours: [Driven; 2]) -> Sample {
    let seconds = driven.nanoseconds as f64 / 1e9;
    // Where `direct` waited for an answer, it tells nothing of the machine's speed.
    let rates: Vec<f64> = neighbours
        .iter()
        .filter(|direct| direct.failed == 0 && direct.nanoseconds > 0)
        .map(|direct| direct.units / (direct.nanoseconds as f64 / 1e9))
        .collect();
    Sample {
        answered: driven.units as u64,
        failed: driven.failed,
        seconds,
        cut_short: seconds < SECONDS,
        p50_micros: driven.p50 / 1e3,
        p99_micros: driven.p99 / 1e3,
        direct_rate: (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64),
        direct_failed: neighbours[1].failed,
    }
}

/// The reasons that came up in between, and how often.
fn grown(before: &BTreeMap<String, u64>, mut after: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    for (reason, count) in &mut after {
        *count -= before.get(reason).copied().unwrap_or_default().min(*count);
    }
    after.retain(|_, count| *count > 0);
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driven(units: f64, failed: u64, seconds: f64) -> Driven {
        Driven { units, failed, nanoseconds: (seconds * 1e9) as u64, p50: 1e3, p99: 2e3 }
    }

    #[test]
    fn a_sample_is_compared_with_its_neighbours() {
        let direct = driven(100.0, 0, 1.0);
        let faster = driven(240.0, 0, 2.0);
        let stuck = driven(1.0, 3, 9.0);
        let whole = sample(&driven(500.0, 1, SECONDS + 0.1), [direct, faster]);
        assert_eq!((whole.answered, whole.failed, whole.cut_short), (500, 1, false));
        assert_eq!((whole.direct_rate, whole.direct_failed), (Some(110.0), 0));
        let cut = sample(&driven(500.0, 3, 2.0), [direct, stuck]);
        assert_eq!((cut.cut_short, cut.direct_rate, cut.direct_failed), (true, Some(100.0), 3));
        assert_eq!(sample(&cut_off(), [stuck, stuck]).direct_rate, None);
    }

    fn cut_off() -> Driven {
        driven(0.0, 3, 0.1)
    }

    #[test]
    fn only_what_was_dropped_meanwhile_counts() {
        let counts = |counts: &[(&str, u64)]| -> BTreeMap<String, u64> {
            counts.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
        };
        let before = counts(&[("no-backend", 2), ("no-connection", 5)]);
        let after = counts(&[("no-backend", 2), ("no-connection", 6), ("snat-ports-exhausted", 3)]);
        assert_eq!(grown(&before, after), counts(&[("no-connection", 1), ("snat-ports-exhausted", 3)]));
    }
}

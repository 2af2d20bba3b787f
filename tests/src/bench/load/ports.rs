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

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    Book, grown,
    results::{SAMPLES_PER_MINUTE, Sample, Span, Stretch},
};
use crate::bench::{
    bounds::{Journal, Progress},
    contender::Contender,
    cpus::{self, KeptOff},
    ends::{Driven, Workload},
    field::{Field, Surroundings},
    target::Path,
};
use crate::control_plane::SharedControlPlane;

pub(super) const PATH: Path = Path::OutsideSingle;
/// Those that take a source port for each request.
const WORKLOADS: [Workload; 2] = [Workload::TcpConnect, Workload::UdpFlow];

/// Of a sample.
const SECONDS: f64 = 60.0 / SAMPLES_PER_MINUTE as f64;
/// Of `direct`, between samples.
const INTERLUDE: f64 = 1.0;

/// What to measure, and how long.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Options {
    /// How long one contender is under load.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// Kinds of requests: `tcp-connect`, `udp-flow`.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Workload::TcpConnect])]
    workloads: Vec<Workload>,
}

impl Options {
    /// Who is not finished.
    fn due(&self, contenders: &[Contender], journal: &Journal) -> Vec<Contender> {
        let is_due = |contender: &Contender| {
            self.workloads.iter().any(|workload| !journal.has(&part(*contender, *workload)))
        };
        contenders.iter().copied().filter(is_due).collect()
    }

    pub(super) fn ensure_sensible(&self) -> Result<()> {
        for workload in &self.workloads {
            let name = workload.name();
            ensure!(WORKLOADS.contains(workload), "--workloads {name}: takes no source ports");
        }
        Ok(())
    }
}

/// Measures who is not finished, each in turn with a `direct` beside it.
pub(super) fn measure(
    options: &Options,
    contenders: &[Contender],
    (api, patience): (&Arc<SharedControlPlane>, Duration),
    book: &mut Book<'_>,
) -> Result<()> {
    let due = options.due(contenders, book.journal);
    let cpu = cpus::allowed()?.into_iter().last().context("no CPU")?;
    let surroundings = Surroundings { cpus: &[cpu], api, at_once: false };
    let build = |contenders: &[Contender]| {
        Field::build_all(contenders, surroundings, (&[PATH], &options.workloads), patience)
    };
    // Beside `direct` itself, too: the same network twice tells what the method takes for a difference.
    let mut direct = build(&[Contender::Direct])?.0.pop().context("nothing arrives without a proxy")?;
    let (mut fields, missing) = build(&due)?;
    book.results.missing.extend(missing);
    book.write()?;
    let processes: Vec<u32> = fields.iter().chain([&direct]).flat_map(Field::processes).collect();
    let kept_off = KeptOff::new(cpu, &processes)?;
    let mut progress = Progress::new(fields.len() * options.workloads.len() * options.minutes as usize);
    for field in &mut fields {
        for workload in &options.workloads {
            let part = part(field.contender(), *workload);
            if book.journal.has(&part) {
                progress.skip(options.minutes as usize);
                continue;
            }
            let mut tell = |minute, span: &Span| progress.step(&format!("{part}, minute {minute}: {span}"));
            let rivals = Rivals { contender: field, direct: &mut direct };
            book.results.put(rivals.measure(*workload, options.minutes, &mut tell)?);
            book.write()?;
            book.journal.finish(&part)?;
        }
    }
    drop(kept_off);
    Ok(())
}

/// As the journal names it.
fn part(contender: Contender, workload: Workload) -> String {
    format!("{} {}", contender.name(), workload.name())
}

/// A contender, and what it is compared with.
struct Rivals<'a> {
    contender: &'a mut Field,
    direct: &'a mut Field,
}

impl Rivals<'_> {
    /// Keeps the contender under load for so many minutes. `tell` gets each of them when it is over.
    fn measure(self, workload: Workload, minutes: u32, tell: &mut dyn FnMut(u32, &Span)) -> Result<Stretch> {
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
}

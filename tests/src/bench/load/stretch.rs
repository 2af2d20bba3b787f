//! A contender under load for minutes.
//!
//! It has no pause but one: between samples of ten seconds there is a second
//! of `direct`. So each sample has a measure of the machine's speed right before and right after it, on a
//! machine whose speed changes from minute to minute. The second does not relieve the contender: what it
//! remembers of ended connections lasts for minutes. Contenders are not measured in turn, for there it would
//! rest for most of the time and could recover.
//!
//! After each minute there is a moment under the same load in which the kernel counts what programs take. That counting
//! costs each of them some, so requests of that moment are in no sample.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    Book, grown,
    reading::Observer,
    results::{Requests, SAMPLES_PER_MINUTE, Sample, Span, Stretch},
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

/// Of a sample.
const SECONDS: f64 = 60.0 / SAMPLES_PER_MINUTE as f64;
/// Of `direct`, between samples.
const INTERLUDE: f64 = 1.0;

/// What contenders are asked, and how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) paths: &'a [Path],
    pub(super) workloads: &'a [Workload],
    pub(super) minutes: u32,
}

impl Asked<'_> {
    /// What this contender is asked that it does something of its own for, and has not been asked.
    fn due(&self, contender: Contender, journal: &Journal) -> Vec<Requests> {
        let paths = self.paths.iter().filter(|path| path.concerns(contender));
        let requests = paths.flat_map(|path| {
            self.workloads.iter().map(|workload| Requests { path: *path, workload: *workload })
        });
        requests.filter(|requests| !journal.has(&requests.by(contender))).collect()
    }
}

/// Measures who is not finished, each in turn with a `direct` beside it.
pub(super) fn measure(
    asked: Asked<'_>,
    contenders: &[Contender],
    (api, patience): (&Arc<SharedControlPlane>, Duration),
    book: &mut Book<'_>,
) -> Result<()> {
    let due: Vec<_> =
        contenders.iter().map(|contender| (*contender, asked.due(*contender, book.journal))).collect();
    let stretches: usize = due.iter().map(|(_, requests)| requests.len()).sum();
    let due: Vec<_> = due.into_iter().filter(|(_, requests)| !requests.is_empty()).collect();
    let cpu = cpus::allowed()?.into_iter().last().context("no CPU")?;
    let surroundings = Surroundings { cpus: &[cpu], api, at_once: false };
    let build = |contenders: &[Contender]| {
        Field::build_all(contenders, surroundings, (asked.paths, asked.workloads), patience)
    };
    // Beside `direct` itself, too: the same network twice tells what the method takes for a difference.
    let mut direct = build(&[Contender::Direct])?.0.pop().context("nothing arrives without a proxy")?;
    let (mut fields, missing) = build(&due.iter().map(|(contender, _)| *contender).collect::<Vec<_>>())?;
    book.results.missing.extend(missing);
    book.write()?;
    let processes: Vec<u32> = fields.iter().chain([&direct]).flat_map(Field::processes).collect();
    let kept_off = KeptOff::new(cpu, &processes)?;
    let mut progress = Progress::new(stretches * asked.minutes as usize);
    for field in &mut fields {
        let contender = field.contender();
        for requests in due.iter().filter(|(other, _)| *other == contender).flat_map(|(_, requests)| requests)
        {
            let part = requests.by(contender);
            let mut tell = |minute, span: &Span| progress.step(&format!("{part}, minute {minute}: {span}"));
            let rivals = Rivals { contender: field, direct: &mut direct };
            book.results.put(rivals.measure(*requests, asked.minutes, &mut tell)?);
            book.write()?;
            book.journal.finish(&part)?;
        }
    }
    drop(kept_off);
    Ok(())
}

/// A contender, and what it is compared with.
struct Rivals<'a> {
    contender: &'a mut Field,
    direct: &'a mut Field,
}

impl Rivals<'_> {
    /// Keeps the contender under load for so many minutes. `tell` gets each of them when it is over.
    fn measure(self, requests: Requests, minutes: u32, tell: &mut dyn FnMut(u32, &Span)) -> Result<Stretch> {
        let Self { contender, direct } = self;
        let Requests { path, workload } = requests;
        let drops_before = contender.drops()?;
        let mut observer = Observer::of(contender)?;
        let (mut samples, mut readings) = (Vec::new(), Vec::new());
        let mut before = direct.drive(path, workload, INTERLUDE, None)?;
        for minute in 1..=minutes {
            for _ in 0..SAMPLES_PER_MINUTE {
                let driven = contender.drive(path, workload, SECONDS, None)?;
                let after = direct.drive(path, workload, INTERLUDE, None)?;
                samples.push(sample(&driven, [before, after]));
                before = after;
            }
            readings.push(observer.read(contender, requests)?);
            tell(minute, &Span::of(&samples[samples.len() - SAMPLES_PER_MINUTE..]));
        }
        let drops = contender.drops()?.map(|after| grown(&drops_before.unwrap_or_default(), after));
        Ok(Stretch { contender: contender.contender(), path, workload, samples, readings, drops })
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

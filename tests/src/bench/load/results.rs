//! What is kept of a measurement.

use std::{collections::BTreeMap, fmt, fs, io::ErrorKind, path::Path as File};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{Flood, Reading, ports};
use crate::bench::{
    contender::Contender, ends::Workload, field::Missing, machine::Machine, statistics::median, target::Path,
};

pub(super) const SAMPLES_PER_MINUTE: usize = 6;

/// The file of results.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Load {
    /// Where the last of it was measured.
    pub machine: Machine,
    /// Load for minutes: one for each path, workload and contender, in this order.
    #[serde(alias = "ports")]
    pub stretches: Vec<Stretch>,
    /// Floods of SYNs: one for each path, rate and contender, in this order.
    #[serde(default)]
    pub floods: Vec<Flood>,
    /// Who did not come to be measured in the last run.
    pub missing: Vec<Missing>,
}

/// A contender under load.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Stretch {
    /// Who.
    pub contender: Contender,
    /// Which way requests went.
    #[serde(default = "single")]
    pub path: Path,
    /// What it was asked.
    pub workload: Workload,
    /// One after the other.
    pub samples: Vec<Sample>,
    /// One after each minute.
    #[serde(default)]
    pub readings: Vec<Reading>,
    /// What the contender has dropped meanwhile, by reason, if it says so.
    pub drops: Option<BTreeMap<String, u64>>,
}

/// The only way there was before results named it.
fn single() -> Path {
    Path::OutsideSingle
}

/// What a contender is asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Requests {
    pub(super) path: Path,
    pub(super) workload: Workload,
}

impl Requests {
    /// As the journal names what this contender is asked.
    pub(super) fn by(self, contender: Contender) -> String {
        format!("{} {} {}", contender.name(), self.path.name(), self.workload.name())
    }
}

/// Some seconds of it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Sample {
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that were not.
    pub failed: u64,
    /// How long it took, waits for those included.
    pub seconds: f64,
    /// Too many requests failed: the rest of its time was given up.
    pub cut_short: bool,
    /// Median time to connect, or of a request where nothing connects.
    pub p50_micros: f64,
    /// The 99th percentile of the same.
    pub p99_micros: f64,
    /// Requests per second by `direct`, mean of right before and right after.
    pub direct_rate: Option<f64>,
    /// Requests by `direct` right after that were not answered.
    pub direct_failed: u64,
}

/// Samples in one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that were not.
    pub failed: u64,
    /// Samples that were given up.
    pub cut_short: usize,
    /// Answered requests per second.
    pub rate: f64,
    /// Answered requests over those that `direct` would have had in the same time; 0 if it is not known.
    pub to_direct: f64,
    /// The median over samples of their medians.
    pub p50_micros: f64,
    /// The median over samples of their 99th percentiles.
    pub p99_micros: f64,
}

impl Span {
    /// Sums, so that no second without answers is left out.
    pub fn of(samples: &[Sample]) -> Self {
        let answered = samples.iter().map(|sample| sample.answered).sum();
        let seconds: f64 = samples.iter().map(|sample| sample.seconds).sum();
        let (mut reached, mut possible) = (0.0, 0.0);
        for sample in samples {
            if let Some(rate) = sample.direct_rate {
                reached += sample.answered as f64;
                possible += rate * sample.seconds;
            }
        }
        Self {
            answered,
            failed: samples.iter().map(|sample| sample.failed).sum(),
            cut_short: samples.iter().filter(|sample| sample.cut_short).count(),
            rate: if seconds > 0.0 { answered as f64 / seconds } else { 0.0 },
            to_direct: if possible > 0.0 { reached / possible } else { 0.0 },
            p50_micros: median(samples.iter().map(|sample| sample.p50_micros)),
            p99_micros: median(samples.iter().map(|sample| sample.p99_micros)),
        }
    }

    /// CPU time of a request over that by `direct`.
    pub fn cost(&self) -> Option<f64> {
        (self.to_direct > 0.0).then(|| self.to_direct.recip())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, to_direct, p50_micros, p99_micros, failed, cut_short, .. } = self;
        write!(
            f,
            "{rate:7.0}/s {to_direct:.2} of direct, p50 {p50_micros:.0} us, p99 {p99_micros:.0} us, {failed} failed"
        )?;
        if *cut_short > 0 {
            write!(f, ", {cut_short} of {SAMPLES_PER_MINUTE} samples cut short")?;
        }
        Ok(())
    }
}

impl Stretch {
    /// Each minute of it.
    pub fn minutes(&self) -> Vec<Span> {
        self.samples.chunks(SAMPLES_PER_MINUTE).map(Span::of).collect()
    }

    /// All of it.
    pub fn whole(&self) -> Span {
        Span::of(&self.samples)
    }
}

impl Load {
    /// The file's content; nothing if there is no file.
    pub fn read(path: &File) -> Result<Self> {
        match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            text => {
                let text = text.with_context(|| format!("read {}", path.display()))?;
                serde_json::from_slice(&text)
                    .with_context(|| format!("{} is not what this version writes", path.display()))
            }
        }
    }

    /// Those by which source ports are used again, and all others.
    pub fn by_section(&self) -> (Vec<&Stretch>, Vec<&Stretch>) {
        self.stretches.iter().partition(|stretch| ports::PATHS.contains(&stretch.path))
    }

    /// Replaces the file.
    pub fn write(&self, path: &File) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }

    /// Takes the place of what was measured of the same contender before, asked the same: ratios are to the `direct`
    /// beside it, so that those of other runs stay comparable.
    pub fn put(&mut self, stretch: Stretch) {
        let key = |stretch: &Stretch| (stretch.path, stretch.workload, stretch.contender);
        self.stretches.retain(|old| key(old) != key(&stretch));
        self.stretches.push(stretch);
        self.stretches.sort_by_key(key);
    }

    /// The same for a flood. What it is compared with is part of it.
    pub fn put_flood(&mut self, flood: Flood) {
        self.floods.retain(|old| old.key() != flood.key());
        self.floods.push(flood);
        self.floods.sort_by_key(Flood::key);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::load::floods::tests::flood;

    pub(in crate::bench) fn sample(answered: u64, seconds: f64, direct_rate: Option<f64>) -> Sample {
        let (failed, cut_short) = (u64::from(seconds < 10.0) * 3, seconds < 10.0);
        Sample {
            answered,
            failed,
            seconds,
            cut_short,
            p50_micros: 50.0,
            p99_micros: 90.0,
            direct_rate,
            direct_failed: 0,
        }
    }

    pub(in crate::bench) fn stretch(contender: Contender) -> Stretch {
        Stretch {
            contender,
            path: Path::OutsideSingle,
            workload: Workload::TcpConnect,
            samples: Vec::new(),
            readings: Vec::new(),
            drops: None,
        }
    }

    #[test]
    fn a_wait_counts_as_time_without_answers() {
        let samples = [
            sample(900, 10.0, Some(100.0)),
            // The machine is half as fast, and so are both.
            sample(450, 10.0, Some(50.0)),
            sample(0, 5.0, Some(100.0)),
            sample(1_000, 10.0, None),
        ];
        let span = Span::of(&samples);
        assert_eq!((span.answered, span.failed, span.cut_short), (2_350, 3, 1));
        assert_eq!(span.to_direct, 1_350.0 / 2_000.0);
        assert_eq!(Span::of(&samples[..2]).to_direct, 0.9);
        assert_eq!((Span::of(&samples[3..]).to_direct, Span::of(&[]).rate), (0.0, 0.0));
    }

    #[test]
    fn a_stretch_takes_the_place_of_the_one_before() {
        let stretch = |contender, minutes: usize| Stretch {
            samples: vec![sample(1, 10.0, None); minutes * SAMPLES_PER_MINUTE],
            ..stretch(contender)
        };
        let mut load = Load::default();
        for (contender, minutes) in
            [(Contender::ShuntAll, 1), (Contender::Direct, 3), (Contender::ShuntAll, 2)]
        {
            load.put(stretch(contender, minutes));
        }
        let found: Vec<_> =
            load.stretches.iter().map(|stretch| (stretch.contender, stretch.minutes().len())).collect();
        assert_eq!(found, [(Contender::Direct, 3), (Contender::ShuntAll, 2)]);
    }

    #[test]
    fn a_flood_takes_the_place_of_that_on_the_same_path() {
        let mut load = Load::default();
        for (path, contender, sent) in [
            (Path::OutsideSingle, Contender::Direct, 1),
            (Path::OutsideRemote, Contender::ShuntAll, 2),
            (Path::OutsideRemote, Contender::Direct, 3),
            (Path::OutsideSingle, Contender::Direct, 4),
        ] {
            load.put_flood(Flood { sent, ..flood(path, contender) });
        }
        assert_eq!(load.floods.iter().map(|flood| flood.sent).collect::<Vec<_>>(), [3, 2, 4]);
    }

    #[test]
    fn results_from_before_there_were_floods_and_paths_are_read() {
        let mut json =
            serde_json::to_value(Load { stretches: vec![stretch(Contender::Direct)], ..Load::default() });
        let json = json.as_mut().ok().and_then(serde_json::Value::as_object_mut).expect("an object");
        json.remove("floods");
        let mut stretches = json.remove("stretches").expect("stretches");
        for name in ["path", "readings"] {
            assert!(stretches[0].as_object_mut().is_some_and(|stretch| stretch.remove(name).is_some()));
        }
        json.insert("ports".to_owned(), stretches);
        let load: Load = serde_json::from_value(json.clone().into()).expect("what earlier versions wrote");
        assert_eq!((load.stretches[0].path, load.floods.len()), (Path::OutsideSingle, 0));
    }
}

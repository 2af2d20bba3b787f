//! What requests cost: every contender on a network of its own, all at once, measured in turn.
//!
//! A round goes through every path and workload, and at each of them through the contenders, for
//! a moment each. So what disturbs the machine meets all of them, and a ratio is always one of
//! the same few milliseconds. Medians are over rounds.

mod results;
mod samples;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;

pub use results::{Cell, Run, Traffic};

use super::{
    bounds::{Bounds, Journal, Progress},
    contender::Contender,
    cpus::{self, KeptOff},
    ends::Workload,
    field::{Field, Surroundings},
    machine::Machine,
    populate::populated,
    target::{self, Path},
};
use samples::Samples;

/// What to measure, and how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Numbers of other Services, each with 10 endpoints.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 1_000, 10_000, 50_000])]
    services: Vec<u32>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// How long one contender is measured at a time.
    #[arg(long, default_value_t = 0.06)]
    seconds: f64,
    /// Who is measured beside `direct`; all, if none is named.
    #[arg(long, value_delimiter = ',', value_enum)]
    contenders: Vec<Contender>,
    /// From where to where; all but `outside-single`, if none is named.
    #[arg(long, value_delimiter = ',', value_enum)]
    paths: Vec<Path>,
    /// Kinds of requests; all, if none is named.
    #[arg(long, value_delimiter = ',', value_enum)]
    workloads: Vec<Workload>,
    /// Longest wait for a contender to deliver, in seconds.
    #[arg(long, default_value_t = 900)]
    patience: u64,
    /// Where the results go.
    #[arg(long, default_value = "docs/benchmarks")]
    out: PathBuf,
    /// Keep what the results have of other numbers of Services, other paths and other workloads.
    #[arg(long)]
    add: bool,
    #[command(flatten)]
    bounds: Bounds,
}

impl Options {
    /// Those that results depend on, as text.
    fn told(&self) -> String {
        format!("{:?}", Self { bounds: Bounds::default(), ..self.clone() })
    }
}

/// What is named, or else all of these, in the order of the type.
fn chosen<T: Clone + Ord>(named: &[T], all: &[T]) -> Vec<T> {
    let mut chosen = if named.is_empty() { all.to_vec() } else { named.to_vec() };
    chosen.sort();
    chosen.dedup();
    chosen
}

/// Measures, and writes the results after each round.
pub fn run(options: &Options) -> Result<()> {
    let seconds = options.seconds;
    ensure!(seconds > 0.0 && seconds <= 60.0, "--seconds {seconds}: between 0 and 60");
    ensure!(options.rounds > 0, "--rounds: at least one");
    let file = options.out.join("traffic.json");
    let mut journal = options.bounds.begin("traffic", &options.told(), &options.services)?;
    let adds = options.add || options.bounds.resume;
    let mut results = if adds { Traffic::read(&file)?.unwrap_or_default() } else { Traffic::default() };
    results.machine = Machine::here()?;
    let mut progress = Progress::new(options.services.len() * options.rounds);
    for services in &options.services {
        let part = services.to_string();
        if journal.has(&part) {
            progress.skip(options.rounds);
            println!("{services} Services: measured already");
            continue;
        }
        let mut write = |run: Run| {
            results.put(run);
            results.write(&file)
        };
        let run = measure(*services, options, &mut journal, &mut progress, &mut write)
            .with_context(|| format!("{services} Services"))?;
        println!("{run}");
        journal.finish(&part)?;
    }
    options.bounds.end(journal)
}

/// `write` gets what there is after each round.
fn measure(
    services: u32,
    options: &Options,
    journal: &mut Journal,
    progress: &mut Progress,
    write: &mut dyn FnMut(Run) -> Result<()>,
) -> Result<Run> {
    let control_plane = populated(services, journal)?;
    control_plane.write(&target::objects())?;
    let mut contenders = chosen(&options.contenders, Contender::value_variants());
    contenders.retain(|contender| *contender != Contender::Direct);
    contenders.insert(0, Contender::Direct);
    let cpu = cpus::allowed()?.into_iter().last().context("no CPU")?;
    let (paths, workloads) =
        (chosen(&options.paths, &Path::USUAL), chosen(&options.workloads, Workload::value_variants()));
    println!("{services} Services:");
    let patience = Duration::from_secs(options.patience);
    let surroundings = Surroundings { cpus: &[cpu], api: &control_plane, at_once: false };
    let (mut fields, missing) = Field::build_all(&contenders, surroundings, (&paths, &workloads), patience)?;
    let ends: Vec<u32> = fields.iter().flat_map(Field::processes).collect();
    let kept_off = KeptOff::new(cpu, &ends)?;
    let mut samples = Samples::default();
    let run = |rounds, samples: &Samples| {
        let (cells, missing) = (samples.cells(), missing.clone());
        Run { services, rounds, seconds: options.seconds, cells, missing }
    };
    for round in 0..options.rounds {
        one_round(round, &mut fields, (&paths, &workloads), options.seconds, &mut samples)?;
        write(run(round + 1, &samples))?;
        progress.step(&format!("{services} Services: round {} of {}", round + 1, options.rounds));
    }
    drop(kept_off);
    Ok(run(options.rounds, &samples))
}

/// Who begins differs from round to round, for what was measured before leaves traces.
fn one_round(
    round: usize,
    fields: &mut [Field],
    (paths, workloads): (&[Path], &[Workload]),
    seconds: f64,
    samples: &mut Samples,
) -> Result<()> {
    for path in paths {
        for workload in workloads {
            fields.rotate_left(usize::from(!fields.is_empty()));
            for field in fields.iter_mut().filter(|field| path.concerns(field.contender())) {
                let driven = field.drive(*path, *workload, seconds, None)?;
                samples.add(round, (*path, *workload, field.contender()), driven);
            }
        }
    }
    Ok(())
}

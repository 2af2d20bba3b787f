//! `bench control`: how long a change takes to be in force, what a start costs, and what many
//! services cost an agent that has nothing to do.
//!
//! Each contender has two nodes of its own and, one after the other, the same API server. What is
//! missed is said in the row's notes; only what the harness itself cannot do is an error.

mod contender;
mod delivery;
mod objects;
mod phases;
mod prober;
mod report;
mod results;
mod samples;
mod stretch;
mod usage;
mod world;

pub use contender::Contender;
pub use prober::work as prober;
pub use report::{markdown, table};
pub use results::Results;

use super::{
    bounds::{Bounds, Journal, Progress},
    populate::populated,
};
use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use phases::Measurement;
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Options of `bench control`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Numbers of services that nobody asks, of 10 endpoints each
    #[arg(long, value_delimiter = ',', default_values_t = [10, 1000, 10_000, 50_000])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=300_000))]
    pub services: Vec<u32>,
    /// Who is measured
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Contender::value_variants().to_vec())]
    pub contenders: Vec<Contender>,
    /// Services that are created, and changes of an endpoint, one after the other
    #[arg(long, default_value_t = 20)]
    pub samples: u32,
    /// Length of the stretches of requests, idle and under churn
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub seconds: u64,
    /// The longest wait for one thing
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub patience: u64,
    /// For one contender and one number of services; what does not fit is not measured
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub budget: u64,
    /// Where control.json is, to which results are added
    #[arg(long, value_name = "DIR", default_value = "docs/benchmarks")]
    pub out: PathBuf,
    /// What is finished, and what is kept
    #[command(flatten)]
    pub bounds: Bounds,
}

impl Options {
    /// Those that results depend on, as text.
    fn told(&self) -> String {
        format!("{:?}", Self { bounds: Bounds::default(), ..self.clone() })
    }

    fn measurement(&self, services: u32) -> Measurement {
        Measurement {
            services,
            samples: self.samples,
            length: Duration::from_secs(self.seconds),
            patience: Duration::from_secs(self.patience),
            deadline: Instant::now() + Duration::from_secs(self.budget),
        }
    }
}

/// Measures everything that is asked for, and prints it.
pub fn run(options: &Options) -> Result<()> {
    fs::create_dir_all(&options.out).with_context(|| format!("create {}", options.out.display()))?;
    let path = options.out.join("control.json");
    let mut journal = options.bounds.begin("control", &options.told(), &options.services)?;
    let mut progress = Progress::new(options.services.len() * options.contenders.len());
    for services in &options.services {
        run_with(*services, options, &path, &mut journal, &mut progress)
            .with_context(|| format!("with {services} services"))?;
    }
    options.bounds.end(journal)?;
    println!("\n{}", table(&Results::read(&path)?));
    Ok(())
}

fn run_with(
    services: u32,
    options: &Options,
    path: &Path,
    journal: &mut Journal,
    progress: &mut Progress,
) -> Result<()> {
    let begin = Instant::now();
    let part = |contender: Contender| format!("{services} services, {contender}");
    let (done, todo): (Vec<_>, Vec<_>) =
        options.contenders.iter().copied().partition(|contender| journal.has(&part(*contender)));
    progress.skip(done.len());
    if todo.is_empty() {
        println!("{services} services: measured already");
        return Ok(());
    }
    let control_plane = populated(services, journal)?;
    world::prepare(&control_plane)?;
    println!("{services} services: API server ready after {:.0} s", begin.elapsed().as_secs_f64());
    for contender in todo {
        if let Some(reason) = contender.obstacle() {
            println!("{}: not measured: {reason}", part(contender));
            progress.skip(1);
            continue;
        }
        let row = options.measurement(services).row(&control_plane, contender)?;
        // After each, for the next may be interrupted.
        let mut results = Results::read(path)?;
        results.merge(row);
        results.write(path)?;
        journal.finish(&part(contender))?;
        progress.step(&part(contender));
    }
    Ok(())
}

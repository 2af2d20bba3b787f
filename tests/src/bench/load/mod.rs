//! What holds under load that lasts, and does not show in the moments that [`super::traffic`] measures.
//!
//! [`ports`]: connections through a NodePort to a single backend, for minutes, so that each source port
//! of the node is used again many times.

mod ports;
mod results;
mod table;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

pub use results::{Load, Sample, Span, Stretch};
pub use table::{NAMES, cells, text};

use super::{
    bounds::{Bounds, Journal, Progress},
    contender::Contender,
    cpus::{self, KeptOff},
    ends::Workload,
    field::Field,
    machine::Machine,
    populate::populated,
    target,
};

/// What to measure, and how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// How long one contender is under load.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// Who is measured, one after the other, each in turn with a `direct` beside it.
    #[arg(long, value_delimiter = ',', value_enum)]
    #[arg(default_values_t = [Contender::Direct, Contender::ShuntAll, Contender::ShuntXdp, Contender::Nftables])]
    contenders: Vec<Contender>,
    /// Kinds of requests: `tcp-connect`, `udp-flow`.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Workload::TcpConnect])]
    workloads: Vec<Workload>,
    /// Number of other Services, each with 10 endpoints.
    #[arg(long, default_value_t = 10)]
    services: u32,
    /// Longest wait for a contender to deliver, in seconds.
    #[arg(long, default_value_t = 900)]
    patience: u64,
    /// Where load.json is, to which results are added.
    #[arg(long, default_value = "docs/benchmarks")]
    out: PathBuf,
    #[command(flatten)]
    bounds: Bounds,
}

impl Options {
    /// Those that results depend on, as text.
    fn told(&self) -> String {
        format!("{:?}", Self { bounds: Bounds::default(), ..self.clone() })
    }

    /// Who is not finished.
    fn due(&self, journal: &Journal) -> Vec<Contender> {
        let is_due = |contender: &Contender| {
            self.workloads.iter().any(|workload| !journal.has(&part(*contender, *workload)))
        };
        self.contenders.iter().copied().filter(is_due).collect()
    }

    fn ensure_sensible(&self) -> Result<()> {
        for contender in &self.contenders {
            let name = contender.name();
            ensure!(ports::PATH.concerns(*contender), "--contenders {name}: does nothing of its own here");
        }
        for workload in &self.workloads {
            let name = workload.name();
            ensure!(ports::WORKLOADS.contains(workload), "--workloads {name}: takes no source ports");
        }
        Ok(())
    }
}

/// Measures, and writes the results after each contender.
pub fn run(options: &Options) -> Result<()> {
    options.ensure_sensible()?;
    let file = options.out.join("load.json");
    let mut journal = options.bounds.begin("load", &options.told(), &[options.services])?;
    let mut results = Load::read(&file)?;
    results.machine = Machine::here()?;
    measure(options, &mut journal, &mut results, &file)?;
    options.bounds.end(journal)?;
    println!("\n{}", text(&results));
    Ok(())
}

fn measure(options: &Options, journal: &mut Journal, results: &mut Load, file: &Path) -> Result<()> {
    let control_plane = populated(options.services, journal)?;
    control_plane.write(&target::objects())?;
    let cpu = cpus::allowed()?.into_iter().last().context("no CPU")?;
    let patience = Duration::from_secs(options.patience);
    let build = |contenders: &[Contender]| {
        Field::build_all(contenders, (cpu, &control_plane), (&[ports::PATH], &options.workloads), patience)
    };
    // Beside `direct` itself, too: the same network twice tells what the method takes for a difference.
    let mut direct = build(&[Contender::Direct])?.0.pop().context("nothing arrives without a proxy")?;
    let (mut fields, missing) = build(&options.due(journal))?;
    results.missing = missing;
    results.write(file)?;
    let processes: Vec<u32> = fields.iter().chain([&direct]).flat_map(Field::processes).collect();
    let kept_off = KeptOff::new(cpu, &processes)?;
    let mut progress = Progress::new(fields.len() * options.workloads.len() * options.minutes as usize);
    for field in &mut fields {
        for workload in &options.workloads {
            let part = part(field.contender(), *workload);
            if journal.has(&part) {
                progress.skip(options.minutes as usize);
                continue;
            }
            let mut tell = |minute, span: &Span| progress.step(&format!("{part}, minute {minute}: {span}"));
            let rivals = ports::Rivals { contender: field, direct: &mut direct };
            results.put(rivals.measure(*workload, options.minutes, &mut tell)?);
            results.write(file)?;
            journal.finish(&part)?;
        }
    }
    drop(kept_off);
    Ok(())
}

/// As the journal names it.
fn part(contender: Contender, workload: Workload) -> String {
    format!("{} {}", contender.name(), workload.name())
}

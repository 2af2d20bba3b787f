//! Compares: `bench --help`. Started by `cargo xtask bench`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tests::bench::{control, ends, load, populate, report, traffic};

/// Measure shunt beside kube-proxy and beside no proxy at all.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// What requests cost.
    Traffic(traffic::Options),
    /// What changes of Services cost.
    Control(control::Options),
    /// What holds under load that lasts.
    Load(load::Options),
    /// Write pages and charts of the results.
    Report {
        /// Where the results are, and where the pages go.
        #[arg(long, default_value = "docs/benchmarks")]
        out: PathBuf,
    },
    /// Fill the cache with the data of API servers that have so many Services.
    Populate(populate::Options),
    #[command(hide = true)]
    Ends {
        #[arg(long, value_delimiter = ',')]
        cpus: Vec<usize>,
    },
    #[command(hide = true)]
    Prober,
}

fn main() -> Result<()> {
    match Args::parse().task {
        Task::Traffic(options) => traffic::run(&options),
        Task::Control(options) => control::run(&options),
        Task::Load(options) => load::run(&options),
        Task::Report { out } => report::write(&out),
        Task::Populate(options) => populate::populate(&options.services),
        Task::Ends { cpus } => ends::work(&cpus),
        Task::Prober => control::prober(),
    }
}

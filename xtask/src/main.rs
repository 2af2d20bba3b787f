//! Project tasks: `cargo xtask --help`.
//!
//! Each task brings what it needs: it looks for tools, installs the missing ones where it
//! may, builds, and then runs. Nothing of the product lives here.

mod bench;
mod binaries;
mod cgroup;
mod charts;
mod ci;
mod control_plane;
mod ebpf;
mod files;
mod fuzz;
mod go;
mod linker;
mod load;
mod machine;
mod memory;
mod next_version;
mod packages;
mod passes;
mod proc;
mod prove;
mod test;
mod toolchain;
mod variant;
mod workspace;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Build, test and show shunt.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build the eBPF object that the agent embeds; installs a missing toolchain where it may.
    BuildEbpf {
        /// The one of a version with another layout of map rows, for tests of upgrades; also builds its agent, as
        /// `shunt_next`. tests/next-layout.toml has what differs.
        #[arg(long)]
        next_layout: bool,
    },
    /// Run the tests: all tiers, or those named.
    ///
    /// Tiers: model (no privileges), packet, node, cluster, faults, conformance (all root). Any other
    /// word is a filter on test names: `cargo xtask test node hairpin`.
    Test(test::Options),
    /// Run the conformance cases; `cargo xtask conformance --help` lists its options.
    #[command(disable_help_flag = true)]
    Conformance {
        /// Passed on to the runner.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Show two nodes with real traffic; `cargo xtask demo --help` lists its options.
    #[command(disable_help_flag = true)]
    Demo {
        /// Passed on to the demo.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Measure beside kube-proxy, and write docs/benchmarks; `cargo xtask bench traffic -- --help`
    /// lists the options of one measurement.
    Bench {
        /// What to measure; without it traffic and control at every number of Services, and the
        /// report.
        what: Option<bench::Benchmark>,
        /// Most memory of everything that traffic, control and load start: a share of the machine's, as 60%, an
        /// amount, as 8G or 4096M, or "none".
        #[arg(long, value_name = "LIMIT", default_value = "60%")]
        memory: memory::Memory,
        /// Passed on to the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Fuzz the parser and the programs; installs cargo-fuzz if it is missing.
    Fuzz {
        /// How long, for each of the two.
        #[arg(long, value_name = "N", default_value_t = 60)]
        seconds: u64,
        /// Also tell how much of the parser was reached, which takes LLVM's tools.
        #[arg(long)]
        coverage: bool,
    },
    /// Prove what holds for all inputs; installs the prover if it is missing. docs/proofs.md has what is proved.
    Prove {
        /// Only proofs whose names contain one of these.
        names: Vec<String>,
        /// Instead show that proofs can fail: each change of proofs/mutants.toml must be refuted.
        #[arg(long, conflicts_with = "names")]
        mutants: bool,
    },
    /// Run what a change must pass, `.ci/run`, on a fresh clone of the last commit.
    Ci,
    /// Build the Kubernetes control plane for the cluster tier and print where it is.
    ControlPlane,
}

fn main() -> ExitCode {
    match run(Args::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::find()?;
    match task {
        Task::BuildEbpf { next_layout: true } => next_version::build(&workspace)?,
        Task::BuildEbpf { next_layout: false } => ebpf::build(&workspace)?,
        Task::Test(options) => return test::run(&workspace, &options),
        Task::Conformance { args } => {
            let find = || anyhow::Ok((control_plane::VARIABLE, control_plane::find_or_build(&workspace)?));
            let assets = test::wants_api_server(&args).then(find).transpose();
            binaries::exec(&workspace, "conformance", &args, assets.context("no API server")?)?;
        }
        Task::Demo { args } => binaries::exec(&workspace, "demo", &args, None)?,
        Task::Bench { what, memory, args } => bench::exec(&workspace, what, memory, &args)?,
        Task::Fuzz { seconds, coverage } => fuzz::fuzz(&workspace, Duration::from_secs(seconds), coverage)?,
        Task::Prove { mutants: true, .. } => prove::prove_mutants(&workspace)?,
        Task::Prove { mutants: false, names } => prove::prove(&workspace, &names)?,
        Task::Ci => return ci::exec(&workspace),
        Task::ControlPlane => println!("{}", control_plane::find_or_build(&workspace)?.display()),
    }
    Ok(ExitCode::SUCCESS)
}

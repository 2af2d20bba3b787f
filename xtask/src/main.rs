//! Project tasks: `cargo xtask --help`.
//!
//! Each task brings what it needs: it looks for tools, installs the missing ones where it
//! may, builds, and then runs. Nothing of the product lives here.

mod ebpf;
mod linker;
mod packages;
mod proc;
mod toolchain;
mod workspace;

use std::process::ExitCode;

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
    BuildEbpf,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::find()?;
    match args.task {
        Task::BuildEbpf => ebpf::build(&workspace).map(|_| ExitCode::SUCCESS),
    }
}

//! Shows shunt on two nodes made of namespaces. Needs root; removes everything it made.

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;
use tests::{agent::SocketLb, demo};

/// Shows two nodes with real traffic, as a table of what was tried and who answered.
#[derive(Debug, Parser)]
struct Arguments {
    /// Leave it running and say how to look inside
    #[arg(long)]
    keep: bool,
    /// Whose sockets the agents translate
    #[arg(long, value_enum, default_value_t)]
    socket_lb: SocketLb,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let all_well = demo::run(arguments.socket_lb, arguments.keep)?;
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

//! The `shunt` command.

use std::process::ExitCode;

use clap::Parser;
use proxy_userspace::cli::{self, Cli};

fn main() -> ExitCode {
    cli::run(Cli::parse().command).unwrap_or_else(|error| {
        eprintln!("error: {}", cli::describe(&error));
        ExitCode::FAILURE
    })
}

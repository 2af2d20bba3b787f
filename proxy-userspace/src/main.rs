//! The `shunt` command.

use std::process::ExitCode;

use clap::Parser;
use proxy_userspace::cli::{self, Cli};

fn main() -> ExitCode {
    let arguments = cli::agent::arguments(std::env::args_os());
    cli::run(Cli::parse_from(arguments).command).unwrap_or_else(|error| {
        eprintln!("error: {}", cli::describe(&error));
        ExitCode::FAILURE
    })
}

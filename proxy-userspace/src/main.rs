//! The `shunt` command.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use proxy_userspace::{
    agent,
    cli::{self, AgentArgs, Cli, Command, ConnCommand, ServiceCommand},
    config::Config,
    logging,
};

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Agent(args) => agent(args),
        Command::Cleanup(args) => print(&runtime()?.block_on(cli::cleanup(&args))?),
        Command::Service(ServiceCommand::List(args)) => print(&cli::list_services(&args)?),
        Command::Conn(ConnCommand::List(args)) => print(&cli::list_connections(&args)?),
    }
}

fn agent(args: AgentArgs) -> Result<()> {
    let config = Config::load(args.config.as_deref(), args.overrides()).context("configuration")?;
    logging::init(&config.logging)?;
    let result = runtime()?.block_on(agent::run(config, args.manifests));
    // Whoever reads the log, perhaps as JSON, must find the end in it too.
    result.inspect_err(|error| tracing::error!(error = format!("{error:#}"), "the agent ends"))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

/// Prints a result. A reader that has seen enough, such as `head`, is no error.
fn print(text: &str) -> Result<()> {
    use std::io::{ErrorKind, Write};
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

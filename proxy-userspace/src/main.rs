//! The `shunt` command.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use proxy_userspace::{
    agent,
    cli::{self, Cli, Command, ConnCommand, ServiceCommand, agent::AgentArgs, config::ConfigCommand},
    config::Config,
    logging,
};

fn main() -> ExitCode {
    run(Cli::parse().command).unwrap_or_else(|error| {
        eprintln!("error: {}", describe(&error));
        ExitCode::FAILURE
    })
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Agent(args) => agent(args),
        Command::Check(args) => {
            let (ok, report) = runtime()?.block_on(cli::check::run(&args))?;
            let printed = print(&report)?;
            Ok(if ok { printed } else { ExitCode::FAILURE })
        }
        Command::Cleanup(args) => print(&runtime()?.block_on(cli::cleanup(&args))?),
        Command::Service(ServiceCommand::List(args)) => print(&cli::list_services(&args)?),
        Command::Conn(ConnCommand::List(args)) => print(&cli::list_connections(&args)?),
        Command::Config(ConfigCommand::Check(args)) => {
            let checked = cli::config::check(&args)?;
            let printed = print(&checked.report)?;
            Ok(if checked.valid { printed } else { ExitCode::FAILURE })
        }
    }
}

fn agent(args: AgentArgs) -> Result<ExitCode> {
    let config = Config::load(args.config.as_deref(), args.overrides()).context("configuration")?;
    logging::init(&config.logging)?;
    match runtime()?.block_on(agent::run(config, args.manifests)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            // In the log, and there only: it may be JSON that a program reads.
            tracing::error!(error = describe(&error), "the agent ends");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// An error with its causes. Most of ours quote their cause already.
fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

/// Prints a result. A reader that has seen enough, such as `head`, is no error.
fn print(text: &str) -> Result<ExitCode> {
    use std::io::{ErrorKind, Write};
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let io = || std::io::Error::other("disk on fire");
        let quoted = anyhow::Error::new(io()).context("cannot read x: disk on fire").context("configuration");
        assert_eq!(describe(&quoted), "configuration: cannot read x: disk on fire");
        assert_eq!(
            describe(&anyhow::Error::new(io()).context("cannot read x")),
            "cannot read x: disk on fire"
        );
    }
}

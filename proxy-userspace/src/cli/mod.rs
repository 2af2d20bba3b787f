//! The command line: what `shunt` understands, and the commands that look at the pinned
//! maps. They need no agent.

pub mod agent;
pub mod check;
pub mod cleanup;
pub mod config;
pub mod conns;
pub mod rows;
pub mod services;
pub mod table;

use std::{
    io::{ErrorKind, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use proxy_common::addr::{Ip4, Ip6};
use serde::Serialize;

use self::rows::{Names, Rows};
use crate::{
    clock::monotonic_nanos,
    kernel::{DEFAULT_BPFFS, PinnedMaps, Pins},
};

/// Service traffic in eBPF: a drop-in replacement for kube-proxy on any CNI.
#[derive(Debug, Parser)]
#[command(name = "shunt", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `shunt` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run on a node and deliver service traffic.
    #[command(after_help = agent::EXAMPLES)]
    Agent(agent::AgentArgs),
    /// Say whether this node has what the agent needs, what gets in its way, and what is attached.
    ///
    /// Works with and without an agent, and changes nothing. The exit status is 1 if something is wrong.
    #[command(after_help = "Examples:\n  shunt check\n  shunt check --config /etc/shunt/config.yaml\n  \
                      shunt check -o json | jq '.devices[] | {interface, xdp}'")]
    Check(check::CheckArgs),
    /// Remove every trace of the agent from this node: programs, links, maps.
    #[command(after_help = cleanup::EXAMPLES)]
    Cleanup(BpffsArg),
    /// Look at the services.
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Look at the connections.
    #[command(subcommand)]
    Conn(ConnCommand),
    /// Look at configuration files.
    #[command(subcommand)]
    Config(config::ConfigCommand),
}

/// Carries out a command and says how it went; an error is for the caller to print.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Agent(args) => agent::run(args),
        Command::Check(args) => check::run(&args),
        Command::Cleanup(args) => cleanup::run(&args),
        Command::Service(ServiceCommand::List(args)) => print(&list_services(&args)?),
        Command::Conn(ConnCommand::List(args)) => print(&list_connections(&args)?),
        Command::Config(command) => config::run(&command),
    }
}

/// Where the agent pinned its maps.
#[derive(Debug, Args)]
pub struct BpffsArg {
    /// Directory of the pinned maps and links.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_BPFFS)]
    pub bpffs: PathBuf,
}

/// `shunt service`
#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Show the addresses services answer on, their policies and their backends.
    ///
    /// CONNECTIONS are those whose packets are rewritten; connections that socket LB
    /// translated when they were opened need no tracking and are not counted.
    #[command(after_help = "Examples:\n  shunt service list\n  shunt service list -o wide\n  \
                      shunt service list -o json | jq '.[] | select(.backends == [])'\n\n\
                      A backend marked * runs on this node.")]
    List(ListArgs<ServiceOutput>),
}

/// `shunt conn`
#[derive(Debug, Subcommand)]
pub enum ConnCommand {
    /// Show the connections whose packets are rewritten.
    ///
    /// Connections that socket LB translated when they were opened need no tracking and are not listed.
    #[command(after_help = "Examples:\n  shunt conn list\n  shunt conn list -o json | jq length")]
    List(ListArgs<ConnOutput>),
}

/// Flags of all lists.
#[derive(Debug, Args)]
pub struct ListArgs<O: ValueEnum + Clone + Default + Send + Sync + 'static> {
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: O,
    /// Show service ids in place of names.
    #[arg(short, long)]
    pub numeric: bool,
    /// Where the maps are.
    #[command(flatten)]
    pub bpffs: BpffsArg,
}

/// How services are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ServiceOutput {
    /// The main columns.
    #[default]
    Table,
    /// Every column and every backend.
    Wide,
    /// Everything, for programs.
    Json,
}

/// How connections are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ConnOutput {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// `shunt service list`
pub fn list_services(args: &ListArgs<ServiceOutput>) -> Result<String> {
    let maps = PinnedMaps::open(Pins::new(&args.bpffs.bpffs))?;
    let names = Names::read(&maps, args.numeric)?;
    let mut views = services::frontends(&Rows::<Ip4>::read(&maps)?, &names);
    views.extend(services::frontends(&Rows::<Ip6>::read(&maps)?, &names));
    services::sort(&mut views);
    match args.output {
        ServiceOutput::Table => Ok(table::services(&views, false)),
        ServiceOutput::Wide => Ok(table::services(&views, true)),
        ServiceOutput::Json => json(&views),
    }
}

/// `shunt conn list`
pub fn list_connections(args: &ListArgs<ConnOutput>) -> Result<String> {
    let maps = PinnedMaps::open(Pins::new(&args.bpffs.bpffs))?;
    let names = Names::read(&maps, args.numeric)?;
    let now = monotonic_nanos().context("cannot read the clock")?;
    let mut views = conns::connections(&Rows::<Ip4>::read(&maps)?, &names, now);
    views.extend(conns::connections(&Rows::<Ip6>::read(&maps)?, &names, now));
    conns::sort(&mut views);
    match args.output {
        ConnOutput::Table => Ok(table::connections(&views)),
        ConnOutput::Json => json(&views),
    }
}

fn json(views: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(views).context("cannot write JSON")
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

/// Prints a result. A reader that has seen enough, such as `head`, is no error.
fn print(text: &str) -> Result<ExitCode> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// An error with its causes. Most of ours quote their cause already.
pub fn describe(error: &anyhow::Error) -> String {
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

#[cfg(test)]
mod tests;

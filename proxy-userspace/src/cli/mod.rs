//! The command line: what `shunt` understands, and the commands that look at the pinned
//! maps. They need no agent.

pub mod agent;
pub mod check;
pub mod cleanup;
pub mod completions;
pub mod config;
pub mod desired;
pub mod explain;
pub mod list;
pub mod man;
pub mod migrate;
pub mod output;
pub mod plan;
pub mod rows;
pub mod stats;
pub mod table;
pub mod top;
pub mod trace;
pub mod usage;
pub mod verify;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use self::{
    list::{
        affinity::AffinityCommand, backend::BackendCommand, conn::ConnCommand, device::DeviceCommand,
        drop::DropCommand, service::ServiceCommand,
    },
    output::{json, print},
};
use crate::kernel::DEFAULT_BPFFS;

pub use self::output::describe;

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
    Cleanup(cleanup::CleanupArgs),
    /// Take services over from a running kube-proxy, or give them back, with open connections kept.
    ///
    /// Changes nothing without --yes, but says what there is and what it would do.
    #[command(after_help = migrate::EXAMPLES)]
    Migrate(migrate::MigrateArgs),
    /// Look at the services.
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Look at the backends of services.
    #[command(subcommand)]
    Backend(BackendCommand),
    /// Look at the connections.
    #[command(subcommand)]
    Conn(ConnCommand),
    /// Look at the clients that stick to a backend.
    #[command(subcommand)]
    Affinity(AffinityCommand),
    /// Look at the devices that carry programs.
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Look at what was refused, and why.
    #[command(subcommand)]
    Drop(DropCommand),
    /// Show what went by each service and to each of its backends, as ipvsadm does.
    ///
    /// Counted since the maps were made: connections opened, packets and bytes from clients (in) and to
    /// them (out). A backend marked * runs on this node. Socket LB translates connections when they are
    /// opened, and their packets are not seen: of them only CONNS and CPS tell. The addresses of one kind,
    /// such as those of several load balancers, are counted together.
    #[command(after_help = stats::EXAMPLES)]
    Stats(stats::StatsArgs),
    /// Watch rates of services and backends, refusals, and how full the maps are.
    #[command(after_help = top::EXAMPLES)]
    Top(top::TopArgs),
    /// Watch connections as they are opened and refused.
    ///
    /// Shows which hook met them, the frontend, the backend that was chosen, what is rewritten, and
    /// why something is refused.
    #[command(after_help = trace::EXAMPLES)]
    Trace(trace::TraceArgs),
    /// Compare the pinned maps with what the objects of the cluster ask for.
    ///
    /// The rows are made by the same code as the agent's, from the same source. What differs is looked at
    /// again for some time, because a change may be on its way. Nothing is written.
    #[command(after_help = verify::EXAMPLES)]
    Verify(verify::VerifyArgs),
    /// Show what the agent would write, without writing it.
    ///
    /// One line for each address that a service would answer on, and for whatever else would change.
    #[command(after_help = plan::EXAMPLES)]
    Plan(plan::PlanArgs),
    /// Say why a connection goes where it goes: frontend, rule, candidates, backend, source, verdict.
    ///
    /// The first packet of the connection goes through the programs on trial, over the live maps and
    /// without leaving a trace in them. Needs no agent.
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::ExplainArgs),
    /// Look at configuration files.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Print a script that completes command lines.
    #[command(after_help = completions::EXAMPLES)]
    Completions(completions::CompletionsArgs),
    /// Print the manual, or write it to files.
    #[command(after_help = man::EXAMPLES)]
    Man(man::ManArgs),
}

/// Carries out a command and says how it went; an error is for the caller to print.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Agent(args) => agent::run(args),
        Command::Check(args) => check::run(&args),
        Command::Cleanup(args) => cleanup::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Service(ServiceCommand::List(args)) => list::run(&args),
        Command::Backend(BackendCommand::List(args)) => list::run(&args),
        Command::Conn(ConnCommand::List(args)) => list::run(&args),
        Command::Affinity(AffinityCommand::List(args)) => list::run(&args),
        Command::Device(DeviceCommand::List(args)) => list::run(&args),
        Command::Drop(DropCommand::List(args)) => list::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Config(command) => config::run(&command),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

/// The variables that tell every command in the agent's container where it has what is elsewhere
/// on a host.
pub(crate) const BPFFS_VARIABLE: &str = "SHUNT_BPFFS";
pub(crate) const CGROUP_VARIABLE: &str = "SHUNT_CGROUP";

/// Where the agent pinned its maps.
#[derive(Debug, Args)]
pub struct BpffsArg {
    /// Directory of the pinned maps and links.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_BPFFS, env = BPFFS_VARIABLE)]
    pub bpffs: PathBuf,
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

#[cfg(test)]
mod tests;

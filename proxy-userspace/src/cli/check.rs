//! `shunt check`: whether this node has what the agent needs, what gets in its way, and what
//! is attached where. Looks at the kernel, not at the agent; changes nothing.

mod judge;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

pub use self::judge::{Facts, Finding, State, judge};
use super::{BPFFS_VARIABLE, CGROUP_VARIABLE, table};
use crate::{
    config::{Config, Overrides},
    kernel::{self, DevicePrograms, HostPorts, KubeProxy, Netlink, Pins, XdpPolicy},
};

/// `shunt check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration the agent has or is to have.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory for pinned maps and links [default: that of the configuration].
    #[arg(long, value_name = "DIR", env = BPFFS_VARIABLE)]
    pub bpffs: Option<PathBuf>,
    /// Cgroup whose processes socket LB serves [default: that of the configuration, else the one that the agent has taken].
    #[arg(long, value_name = "DIR", env = CGROUP_VARIABLE)]
    pub cgroup: Option<PathBuf>,
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
}

/// How the result is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// All that was found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Nothing is wrong.
    pub ok: bool,
    /// One for each thing that was looked at.
    pub checks: Vec<Finding>,
    /// The devices that carry our programs, or were to carry one.
    pub devices: Vec<DeviceView>,
}

/// A device.
#[derive(Debug, Serialize)]
pub struct DeviceView {
    /// Interface name.
    pub interface: String,
    /// How the tc programs are attached.
    pub tc: TcView,
    /// The program for drivers.
    pub xdp: XdpView,
    /// Programs of others, with their hook.
    pub others: Vec<String>,
}

/// How the tc programs are attached: `tcx`, `clsact` or `none`.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct TcView {
    pub ingress: &'static str,
    pub egress: &'static str,
}

/// The program for drivers.
#[derive(Debug, Serialize)]
pub struct XdpView {
    /// What the agent was asked for.
    pub configured: &'static str,
    /// What the kernel has.
    pub mode: &'static str,
    /// Why, as the agent noted it.
    pub reason: String,
}

/// Prints what was found; fails when something is wrong.
pub fn run(args: &CheckArgs) -> Result<ExitCode> {
    let (ok, text) = super::runtime()?.block_on(report(args))?;
    super::print(&text)?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Looks at everything.
async fn report(args: &CheckArgs) -> Result<(bool, String)> {
    let overrides =
        Overrides { bpffs: args.bpffs.clone(), cgroup: args.cgroup.clone(), ..Overrides::default() };
    let config = Config::load(args.config.as_deref(), overrides).context("configuration")?;
    let pins = Pins::new(&config.bpffs);
    let cgroup = config.cgroup.clone().or_else(|| kernel::attached_cgroup(&pins));
    let system = kernel::system(&config.bpffs, cgroup.as_deref());
    let hooks = system.cgroup.as_deref().and_then(|cgroup| kernel::socket_hooks(cgroup).ok());
    let ports: Vec<u16> = config.health.iter().chain(&config.metrics).map(|address| address.port()).collect();
    let snat = config.model.snat_port_first..=config.model.snat_port_last;
    let netlink = Netlink::connect()?;
    let devices = kernel::device_programs(pins, &netlink).await?;
    let host = netlink.host().await?;
    let facts = Facts {
        system,
        hooks: hooks.unwrap_or_default(),
        kube_proxy: KubeProxy::find(),
        stack: kernel::stack(),
        agent_runs: kernel::is_running(&config.bpffs).unwrap_or(false),
        listeners: kernel::listeners(&ports),
        shared_ports: HostPorts::read()?.shared_with(&snat),
        masquerade_faults: host.masquerade_faults(&config.model.masquerade_addresses),
        devices,
        config,
    };
    let checks = judge(&facts);
    let ok = checks.iter().all(|finding| finding.state != State::Error);
    let report = Report { ok, checks, devices: facts.devices.into_iter().map(view).collect() };
    let text = match args.output {
        Output::Table => table::check(&report),
        Output::Json => super::json(&report)?,
    };
    Ok((ok, text))
}

fn view(device: DevicePrograms) -> DeviceView {
    let noted = device.noted.as_ref();
    DeviceView {
        interface: device.interface,
        tc: TcView { ingress: device.ingress.unwrap_or("none"), egress: device.egress.unwrap_or("none") },
        xdp: XdpView {
            configured: noted.map_or(XdpPolicy::Off, |noted| noted.configured).name(),
            mode: device.xdp.name(),
            reason: noted.map(|noted| noted.reason.clone()).unwrap_or_default(),
        },
        others: device.others,
    }
}

//! `shunt migrate`: takes services over from a running kube-proxy, or gives them back.
//!
//! What begins where is decided by the order of hooks: our programs see a packet before
//! netfilter does. So taking over is done when the agent has attached its programs; connections
//! from before are left to netfilter until they end (`dataplane/left.rs`). What remains is to
//! remove kube-proxy's rules once kube-proxy does not write them any more. The way back is the
//! reverse: its rules are there again, and the programs let go of one connection after the other.

mod plan;

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;

pub use self::plan::{Direction, Facts, Plan};
use super::{BpffsArg, check::Output, cleanup, output::note};
use crate::{
    clock::monotonic_nanos,
    config::duration::GoDuration,
    dataplane::{FamilyMaps, MapStore, leave, translated},
    kernel::{self, KernelMaps, KubeProxy, Netlink, Pins},
};

pub(super) const EXAMPLES: &str = "Examples:
  shunt migrate                        # what is there, and what would be done
  shunt migrate --yes --wait=5m        # as soon as kube-proxy is gone, remove its rules
  shunt migrate --back --yes --wait --timeout 30m    # then start kube-proxy and stop the agent
  shunt migrate -o json | jq .obstacles";

/// Time between looks while waiting.
const LOOK: Duration = Duration::from_millis(500);
/// Rules that came while others were being removed: then it is done again.
const TRIES: usize = 5;

/// `shunt migrate`
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Where the agent's pins are.
    #[command(flatten)]
    pub bpffs: BpffsArg,
    /// Give services back to kube-proxy, which has to run again, and remove everything of shunt.
    #[arg(long)]
    pub back: bool,
    /// Do it. Without this nothing is changed.
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Only say what would be done, which is the default.
    #[arg(long)]
    pub dry_run: bool,
    /// Wait until what is in the way is gone, at most for TIMEOUT (such as 90s or 1h30m; forever
    /// without one).
    #[arg(long, value_name = "TIMEOUT", num_args = 0..=1, require_equals = true)]
    pub wait: Option<Option<GoDuration>>,
    /// With --back: end connections that are open after so long.
    #[arg(long, value_name = "TIMEOUT", requires = "back")]
    pub timeout: Option<GoDuration>,
    /// How to show the plan.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
}

/// Says what there is and what is to be done, and does it if told to. Fails if something is in
/// the way.
pub fn run(args: &MigrateArgs) -> Result<ExitCode> {
    let runtime = super::runtime()?;
    let direction = if args.back { Direction::Back } else { Direction::TakeOver };
    let mut plan = Plan::new(direction, runtime.block_on(look(args))?);
    if args.yes && args.back {
        // Before kube-proxy's rules come: those of processes of this host that go past the socket hooks
        // are known to netfilter as untranslated only if it knew them before.
        kernel::keep_translating()?;
    }
    let start = Instant::now();
    while let Some(limit) = args.wait
        && !plan.obstacles.is_empty()
        && limit.is_none_or(|limit| start.elapsed() < limit.to_std())
    {
        thread::sleep(LOOK);
        plan = Plan::new(direction, runtime.block_on(look(args))?);
    }
    super::print(&match args.output {
        Output::Table => plan.to_string(),
        Output::Json => super::json(&plan)?,
    })?;
    if !plan.obstacles.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    if !args.yes {
        note("nothing was changed; --yes does it");
        return Ok(ExitCode::SUCCESS);
    }
    let done = match direction {
        Direction::TakeOver => take_over(args)?,
        Direction::Back => {
            cleanup::drain(&args.bpffs.bpffs, args.timeout.map(GoDuration::to_std))?;
            runtime.block_on(cleanup::remove(&args.bpffs.bpffs, false))?
        }
    };
    super::print(&done)
}

async fn look(args: &MigrateArgs) -> Result<Facts> {
    let root = &args.bpffs.bpffs;
    let devices = kernel::device_programs(Pins::new(root), &Netlink::connect()?).await?;
    let attached = devices.iter().filter(|device| device.ingress.is_some() && device.egress.is_some());
    let mut facts = Facts {
        kube_proxy: KubeProxy::find(),
        agent_runs: kernel::is_running(root)?,
        devices: attached.count(),
        frontends: 0,
        netfilter_connections: 0,
        translated: 0,
    };
    if let Ok(mut maps) = KernelMaps::open(&Pins::new(root)) {
        facts.frontends = maps.v4().frontends()?.len() + maps.v6().frontends()?.len();
        facts.translated = translated(&mut maps)?.total();
    }
    // Without connection tracking there are none.
    facts.netfilter_connections = kernel::nat_flows().map_or(0, |flows| flows.len());
    Ok(facts)
}

/// Removes kube-proxy's rules. The agent has left its connections to netfilter already; this is
/// done once more, for those that processes of the host have begun since.
fn take_over(args: &MigrateArgs) -> Result<String> {
    let mut maps = KernelMaps::open(&Pins::new(&args.bpffs.bpffs))?;
    let mut lines = Vec::new();
    for _ in 0..TRIES {
        let flows = kernel::nat_flows()?;
        let left = leave(&mut maps, &flows, monotonic_nanos().context("cannot read the clock")?)?;
        // Also for connections to what is no service: a host port, say.
        if !flows.is_empty() {
            kernel::keep_translating()?;
        }
        let rules = kernel::kube_proxy_rules()?;
        if rules.is_empty() {
            lines.push(format!("{} connections go on by netfilter until they end", left.flows));
            return Ok(finished(lines, &KubeProxy::find()));
        }
        // Whoever changed the rules meanwhile makes this fail; then they are read again.
        if kernel::remove_rules(&rules).is_ok() {
            lines.extend(rules.iter().map(|set| {
                let (family, table) = (set.family.name(), &set.table);
                format!("removed {} rules from the table {family} {table}", set.rules + set.jumps.len())
            }));
        }
    }
    bail!("kube-proxy's rules come back as fast as they are removed: does it run elsewhere?")
}

fn finished(mut lines: Vec<String>, kube_proxy: &KubeProxy) -> String {
    for legacy in &kube_proxy.legacy {
        lines.push(format!("left to you: rules of {}, by `kube-proxy --cleanup`", legacy.tool));
    }
    if kube_proxy.ipvs {
        lines.push("left to you: virtual servers of IPVS, by `kube-proxy --cleanup`".into());
    }
    if lines.len() == 1 {
        lines.insert(0, "there were no rules of kube-proxy".into());
    }
    lines.join("\n")
}

//! `shunt cleanup`: removes what agents left, and says whether anything remains.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::{BpffsArg, output::note};
use crate::{
    clock::monotonic_nanos,
    config::duration::GoDuration,
    dataplane::{Survey, Timeouts, Translated, retire, translated},
    kernel::{self, DevicePrograms, Holdings, KernelMaps, Netlink, Pins, Stopped},
};

pub(super) const EXAMPLES: &str = "Examples:
  shunt cleanup
  shunt cleanup --dry-run
  shunt cleanup --drain=10m            # after kube-proxy has been started again
  shunt cleanup --bpffs /sys/fs/bpf/other";

/// Time between looks at what is left while draining.
const LOOK: Duration = Duration::from_millis(500);
/// How often progress is told.
const TELL: Duration = Duration::from_secs(10);

/// When a connection is over while draining. A client that has closed needs no translation
/// but for a last answer; datagrams after a pause may as well go another way.
fn timeouts() -> Timeouts {
    let soon = Duration::from_secs(2);
    let pause = Duration::from_secs(10);
    Timeouts { tcp_closed: soon, tcp_reset: soon, udp: pause, udp_stream: pause, ..Timeouts::default() }
}

/// `shunt cleanup`
#[derive(Debug, Args)]
pub struct CleanupArgs {
    /// Where the pins are.
    #[command(flatten)]
    pub bpffs: BpffsArg,
    /// Say what there is, and remove nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// First take no new connections and wait until those that are open have ended, at most for
    /// TIMEOUT (such as 90s or 1h30m; forever without one). Something else has to serve new
    /// connections by then.
    #[arg(long, value_name = "TIMEOUT", num_args = 0..=1, require_equals = true)]
    pub drain: Option<Option<GoDuration>>,
    /// Remove everything under an agent that runs. It goes on without effect, and its /healthz and /livez
    /// answer 503.
    #[arg(long, conflicts_with = "drain")]
    pub force: bool,
}

impl CleanupArgs {
    /// Everything with these pins, at once, unless an agent runs.
    pub(super) fn all_of(bpffs: PathBuf) -> Self {
        Self { bpffs: BpffsArg { bpffs }, dry_run: false, drain: None, force: false }
    }
}

/// Removes everything and prints what there was; fails if something remains.
pub fn run(args: &CleanupArgs) -> Result<ExitCode> {
    super::print(&super::runtime()?.block_on(cleanup(args))?)
}

async fn cleanup(args: &CleanupArgs) -> Result<String> {
    let root = &args.bpffs.bpffs;
    if args.dry_run {
        return list(root).await;
    }
    let stopped = Stopped::ensure(root)?;
    if stopped.is_none() && !args.force {
        bail!(
            "an agent runs with the pins at {}: stop it first, or its programs would be taken from it; \
             --force does that",
            root.display()
        );
    }
    if let Some(limit) = args.drain {
        drain(root, limit.map(GoDuration::to_std))?;
    }
    remove(root, args.force).await
}

/// What there is, a line each.
async fn list(root: &Path) -> Result<String> {
    let netlink = Netlink::connect()?;
    let devices = kernel::device_programs(Pins::new(root), &netlink).await?;
    let mut lines: Vec<String> = devices.iter().flat_map(attached).collect();
    let holdings = Holdings::below(root);
    lines.extend(holdings.programs.iter().map(|(id, name)| format!("program {id} ({name})")));
    lines.extend(holdings.maps.iter().map(|(id, name)| format!("map {id} ({name})")));
    if let Some(connections) =
        KernelMaps::open(&Pins::new(root)).ok().and_then(|mut m| translated(&mut m).ok())
    {
        lines.push(format!("{}, which would end", connections_text(connections)));
    }
    if lines.is_empty() {
        return Ok(nothing(root));
    }
    Ok(lines.iter().map(|what| format!("would remove {what}")).collect::<Vec<_>>().join("\n"))
}

fn attached(device: &DevicePrograms) -> impl Iterator<Item = String> {
    let tc = [("ingress", device.ingress), ("egress", device.egress)];
    let tc = tc.into_iter().filter_map(|(direction, how)| Some((direction, how?)));
    let lines = tc.map(|(direction, how)| format!("{direction} program of {} ({how})", device.interface));
    lines.collect::<Vec<_>>().into_iter()
}

fn nothing(root: &Path) -> String {
    format!("nothing to remove: no agent has left anything at {}", root.display())
}

/// Removes what is below `root`, and looks whether it is gone.
pub(super) async fn remove(root: &Path, forced: bool) -> Result<String> {
    let netlink = Netlink::connect()?;
    let host = netlink.host().await?;
    let links: BTreeMap<u32, String> = host.links.into_iter().map(|(i, link)| (i, link.name)).collect();
    let held = Holdings::below(root);
    let mut removed = kernel::cleanup(root, &links)?;
    removed.extend(netlink.remove_empty_qdiscs(&links, &removed).await?);
    if kernel::stop_translating()? {
        removed.push(format!("nftables table {}", kernel::KEEPER));
    }
    let remains = held.wait_released();
    if !remains.is_empty() {
        let names = remains.programs.values().chain(remains.maps.values()).cloned().collect::<Vec<_>>();
        let what = format!(
            "{} programs and {} maps are in use by a process still: {}",
            remains.programs.len(),
            remains.maps.len(),
            names.join(", ")
        );
        if !forced {
            bail!("removed what was attached and pinned, but {what}");
        }
        note(&what);
    }
    if removed.is_empty() {
        return Ok(nothing(root));
    }
    let mut lines: Vec<String> = removed.iter().map(|what| format!("removed {what}")).collect();
    if remains.is_empty() {
        lines.push("nothing of it is left in the kernel".into());
    }
    Ok(lines.join("\n"))
}

/// Lets go of new connections and waits for the end of those that are open. No agent may run: it
/// would take them again.
pub(super) fn drain(root: &Path, limit: Option<Duration>) -> Result<()> {
    let mut maps = KernelMaps::open(&Pins::new(root))
        .with_context(|| format!("nothing to drain at {}", root.display()))?;
    retire(&mut maps)?;
    let (start, mut told) = (Instant::now(), None);
    loop {
        let now = monotonic_nanos().context("cannot read the clock")?;
        Survey::take(&mut maps, now, &timeouts())?;
        let left = translated(&mut maps)?;
        if left.total() == 0 {
            return Ok(());
        }
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            note(&format!("{} did not end in time, and end now", connections_text(left)));
            return Ok(());
        }
        if told.is_none_or(|told: Instant| told.elapsed() >= TELL) {
            note(&format!("no new connections are taken; waiting for {}", connections_text(left)));
            told = Some(Instant::now());
        }
        thread::sleep(LOOK);
    }
}

fn connections_text(count: Translated) -> String {
    let parts = [(count.tcp, "TCP"), (count.udp, "UDP"), (count.sctp, "SCTP")];
    let parts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    let which = if parts.is_empty() { "0".into() } else { parts.join(", ") };
    format!("{which} connections")
}

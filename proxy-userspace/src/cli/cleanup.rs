//! `shunt cleanup`: removes what agents left.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Result;

use super::BpffsArg;
use crate::kernel::{self, Netlink};

pub(super) const EXAMPLES: &str = "Examples:
  shunt cleanup
  shunt cleanup --bpffs /sys/fs/bpf/other";

/// Removes everything and prints what there was.
pub fn run(args: &BpffsArg) -> Result<ExitCode> {
    super::print(&super::runtime()?.block_on(cleanup(args))?)
}

/// What was removed, a line each.
async fn cleanup(args: &BpffsArg) -> Result<String> {
    let host = Netlink::connect()?.host().await?;
    let links: BTreeMap<u32, String> = host.links.into_iter().map(|(i, link)| (i, link.name)).collect();
    let removed = kernel::cleanup(&args.bpffs, &links)?;
    if removed.is_empty() {
        return Ok(format!("nothing to remove: no agent has left anything at {}", args.bpffs.display()));
    }
    Ok(removed.iter().map(|what| format!("removed {what}")).collect::<Vec<_>>().join("\n"))
}

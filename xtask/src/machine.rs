//! What the privileged tasks need from the machine.

use std::fs;

use crate::packages;
use crate::proc::{is_root, which};

/// Programs that tests and demo call, with the package that holds each.
const TOOLS: [(&str, &str); 4] =
    [("ip", "iproute2"), ("iptables", "iptables"), ("nft", "nftables"), ("ping", "iputils-ping")];

/// Checks that this machine can make networks and load programs, and installs the tools
/// that are missing.
///
/// # Errors
/// Why it cannot.
pub(crate) fn make_ready() -> anyhow::Result<()> {
    anyhow::ensure!(is_root(), "not root");
    anyhow::ensure!(fs::exists("/sys/fs/bpf").unwrap_or(false), "the kernel has no bpf file system");
    let missing = TOOLS.iter().filter(|(program, _)| which(program).is_none());
    let names: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if names.is_empty() {
        return Ok(());
    }
    anyhow::ensure!(
        packages::may_install() && packages::find_all(&names)?,
        "programs are missing; fix: {}",
        packages::install_line(&names)
    );
    packages::install(&names, "test networks")
}

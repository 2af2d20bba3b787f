//! What the privileged tasks need from the machine.

use std::fs;

use crate::packages;
use crate::proc::{is_root, which};

/// Programs that tests and demo call, with the package that holds each.
const TOOLS: [(&str, &str); 2] = [("ip", "iproute2"), ("nft", "nftables")];

/// Why nothing privileged can run here, if so.
pub(crate) fn obstacle() -> Option<&'static str> {
    if !is_root() {
        return Some("not root");
    }
    if !fs::exists("/sys/fs/bpf").unwrap_or(false) {
        return Some("the kernel has no bpf file system");
    }
    None
}

/// Installs the tools that are missing.
pub(crate) fn prepare() -> anyhow::Result<()> {
    let missing =
        || TOOLS.iter().filter(|(program, _)| which(program).is_none()).map(|(_, package)| *package);
    let names: Vec<&str> = missing().collect();
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

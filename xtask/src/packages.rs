//! Distribution packages, on Debian and Ubuntu, by apt.

use std::process::Command;

use anyhow::Context as _;

use crate::proc::{is_root, output, run, say, which};

/// Whether this process may install packages here.
pub(crate) fn may_install() -> bool {
    is_root() && which("apt-get").is_some()
}

/// Whether apt knows all of these packages.
pub(crate) fn all_exist(names: &[&str]) -> bool {
    let policy = |name: &&str| output(Command::new("apt-cache").args(["policy", name]));
    let exists = |name| {
        policy(name).is_some_and(|text| text.contains("Candidate:") && !text.contains("Candidate: (none)"))
    };
    which("apt-cache").is_some() && names.iter().all(exists)
}

/// As [`all_exist`], and looks again with fresh package lists where that is allowed: a new
/// machine often has none.
pub(crate) fn find_all(names: &[&str]) -> anyhow::Result<bool> {
    if all_exist(names) {
        return Ok(true);
    }
    if !may_install() {
        return Ok(false);
    }
    say("refreshing the package lists (apt-get update)");
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    Ok(all_exist(names))
}

/// Installs packages; never removes one that is in the way.
pub(crate) fn install(names: &[&str], why: &str) -> anyhow::Result<()> {
    say(format_args!("installing packages for {why}: {}", names.join(" ")));
    run(Command::new("apt-get")
        .args(["install", "-y", "-qq", "--no-install-recommends", "--no-remove"])
        .args(names)
        .env("DEBIAN_FRONTEND", "noninteractive"))
    .with_context(|| format!("to see why: {}", install_line(names)))
}

/// The command that a person would type.
pub(crate) fn install_line(names: &[&str]) -> String {
    format!("sudo apt-get install {}", names.join(" "))
}

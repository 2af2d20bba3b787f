//! The next version: one that a later release might be, with another layout of map rows. It is made of the sources by
//! edits, so that they know nothing of it.

use std::process::Command;

use anyhow::Context as _;
use serde::Deserialize;

use crate::binaries::AGENT_AND_TESTS;
use crate::ebpf;
use crate::proc::{run, say};
use crate::variant::{self, Edit};
use crate::workspace::{Workspace, cargo};

/// Its agent, beside that of this version: the name that it gets in [`LIST`].
pub(crate) const AGENT: &str = "shunt_next";

const LIST: &str = "tests/next-layout.toml";
/// A small test of the agent's crate. With one, cargo gives dependencies the features that tests need, and so compiles
/// none for this version alone. A test of the tests crate would have its programs built, in place of those of this
/// version.
const ANY_TEST: &str = "metrics_reference";
/// Tells the agent's build script which object to embed.
const OBJECT_VARIABLE: &str = "SHUNT_EBPF_OBJECT";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NextVersion {
    edit: Vec<Edit>,
}

/// Builds its eBPF object and its agent, as [`AGENT`].
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<()> {
    let next: NextVersion = variant::read_list(workspace, LIST)?;
    let sources = workspace.target.join("next-layout");
    variant::write(workspace, &next.edit, &sources).context(LIST)?;
    let object = workspace.target.join("ebpf/proxy-ebpf-next");
    ebpf::build_at(&sources, &workspace.target.join("ebpf/build-next"), &object)?;
    say("building the agent of the next version");
    let mut build = Command::new(cargo());
    build.current_dir(&sources).arg("build").args(AGENT_AND_TESTS).args(["--bin", AGENT, "--test", ANY_TEST]);
    // In the target directory of this version, so that dependencies are compiled once for both.
    run(build.arg("--target-dir").arg(&workspace.target).env(OBJECT_VARIABLE, &object))
        .context("the agent of the next version was not built")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_version_can_be_made() {
        let workspace = Workspace::find().unwrap();
        let next: NextVersion = variant::read_list(&workspace, LIST).unwrap();
        let edited = variant::edited(&workspace, &next.edit).unwrap();
        let is_named = |text: &String| text.contains(&format!("name = \"{AGENT}\""));
        assert!(edited.values().any(is_named), "{LIST} names no program {AGENT}");
    }
}

//! The tests that cargo builds and libtest runs: finds the programs, and what is in them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde_json::Value;

use super::suite::Test;
use super::tier::{Tier, XTASK, selection};
use crate::binaries::{AGENT_AND_TESTS, ANY_TEST};
use crate::proc::line;
use crate::workspace::{TestTarget, Workspace, cargo};

/// A program with tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Executable {
    pub(crate) tier: Tier,
    /// Of the target; begins the names of its tests.
    name: String,
    path: PathBuf,
    /// Of its package; where its tests run.
    folder: PathBuf,
}

/// Builds the tests of these tiers, and the programs if there are any that need them. As much at once
/// as can be: features of dependencies depend on what is built together, and so does what is
/// compiled twice.
pub(crate) fn build(
    workspace: &Workspace,
    tiers: &[Tier],
    programs: bool,
) -> anyhow::Result<Vec<Executable>> {
    let mut found = Vec::new();
    let targets = selection(&workspace.test_targets, tiers)?;
    if programs {
        found.extend(executables(workspace, &["build", "--bins", "--test", ANY_TEST], &targets)?);
    }
    if tiers.contains(&Tier::Model) {
        found.retain(|executable| executable.tier != Tier::Model);
        let unprivileged = selection(&workspace.test_targets, &[Tier::Model])?;
        found.extend(executables(workspace, &["test", "--no-run", "--lib"], &unprivileged)?);
        // On its own, as it was built to get here.
        let mut xtask = Command::new(cargo());
        xtask.args(["test", "--no-run", "--package", XTASK]);
        found.extend(messages(workspace, xtask)?);
    }
    Ok(found)
}

fn executables(workspace: &Workspace, verb: &[&str], targets: &[String]) -> anyhow::Result<Vec<Executable>> {
    let mut command = Command::new(cargo());
    command.args(verb).args(AGENT_AND_TESTS).args(targets);
    messages(workspace, command)
}

/// Runs cargo, and reads which programs with tests it has made.
fn messages(workspace: &Workspace, mut command: Command) -> anyhow::Result<Vec<Executable>> {
    command.current_dir(&workspace.root).arg("--message-format=json-render-diagnostics");
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run {}", line(&command)))?;
    anyhow::ensure!(output.status.success(), "{} failed ({})", line(&command), output.status);
    let text = String::from_utf8(output.stdout).context("messages of cargo's")?;
    let messages = text.lines().map(|line| serde_json::from_str(line).context("a message of cargo's"));
    let mut found = Vec::new();
    for message in messages {
        found.extend(executable(&message?));
    }
    Ok(found)
}

/// The program that a message of cargo's is about, if it has tests.
fn executable(message: &Value) -> Option<Executable> {
    if message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.to_owned();
    let text = |value: &Value| Some(value.as_str()?.to_owned());
    let target = TestTarget {
        package: folder.file_name()?.to_str()?.to_owned(),
        name: text(&message["target"]["name"])?,
        kind: text(&message["target"]["kind"][0])?,
    };
    let path = PathBuf::from(message["executable"].as_str()?);
    Some(Executable { tier: Tier::of(&target)?, name: target.name, path, folder })
}

impl Executable {
    /// Its tests, each to be run in a process of its own.
    pub(crate) fn tests(&self) -> anyhow::Result<Vec<Test>> {
        let mut list = Command::new(&self.path);
        list.current_dir(&self.folder).args(["--list", "--format", "terse"]);
        let output = list.output().with_context(|| format!("cannot run {}", line(&list)))?;
        anyhow::ensure!(output.status.success(), "{} failed ({})", line(&list), output.status);
        let text = String::from_utf8(output.stdout).context("names of tests")?;
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(|name| self.test(name)).collect())
    }

    fn test(&self, name: &str) -> Test {
        Test {
            name: format!("{}::{name}", self.name),
            program: self.path.clone(),
            args: ["--exact", name, "--nocapture"].map(OsString::from).to_vec(),
            folder: self.folder.clone(),
            variables: vec![("CARGO_MANIFEST_DIR".into(), self.folder.clone().into())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn programs_with_tests_are_found_in_messages() {
        let mut message = json!({
            "reason": "compiler-artifact",
            "manifest_path": "/src/tests/Cargo.toml",
            "target": {"name": "node", "kind": ["test"]},
            "profile": {"test": true},
            "executable": "/target/debug/deps/node-1",
        });
        let found = executable(&message).unwrap();
        assert_eq!((found.tier, found.folder.as_path()), (Tier::Node, Path::new("/src/tests")));
        let test = found.test("stage::dials");
        assert_eq!(test.name, "node::stage::dials");
        assert_eq!(test.args, ["--exact", "stage::dials", "--nocapture"]);
        message["profile"]["test"] = false.into();
        assert_eq!(executable(&message), None, "a library for others");
    }
}

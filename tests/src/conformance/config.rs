//! Cases about the configuration alone: `shunt config check` has to name every field that
//! is wrong, and nothing that is right.

use super::{case::ExpectConfig, scene::kube_proxy};
use crate::{agent, cleanup, process::binary};
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};
use std::{fs, process::Command};

pub(super) fn check(config: &Map<String, Value>, expect: &ExpectConfig) -> Result<()> {
    let (directory, _guard) = cleanup::directory("config")?;
    let file = directory.join("config.yaml");
    fs::write(&file, agent::kube_proxy_document(&kube_proxy(config))?)?;
    let mut command = Command::new(binary("shunt")?);
    let output = command.args(["config", "check"]).arg(&file).output().context("start shunt config check")?;
    let report =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    judge(expect, output.status.success(), &report)
}

fn judge(expect: &ExpectConfig, accepted: bool, report: &str) -> Result<()> {
    ensure!(accepted == expect.valid, "{}:\n{report}", if accepted { "accepted" } else { "refused" });
    for path in &expect.errors {
        ensure!(names(report, path), "{path} is not named in:\n{report}");
    }
    Ok(())
}

/// Whether a path stands there as a whole: `conntrack.min` is not named by `conntrack.minimum`.
fn names(report: &str, path: &str) -> bool {
    let in_path = |c: char| c.is_alphanumeric() || c == '.' || c == '[';
    report.match_indices(path).any(|(at, _)| {
        let before = report[..at].chars().next_back();
        let mut after = report[at + path.len()..].chars();
        // A sentence may end behind a path.
        let ends = match after.next() {
            Some('.') => !after.next().is_some_and(char::is_alphanumeric),
            next => !next.is_some_and(in_path),
        };
        ends && !before.is_some_and(in_path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_as_a_whole() {
        assert!(names("error: conntrack.min: must not be negative", "conntrack.min"));
        assert!(names("wrong: a, conntrack.min.", "conntrack.min"));
        assert!(!names("conntrack.minimum: no", "conntrack.min"));
        assert!(!names("nodePortAddresses[0]: no", "nodePortAddresses"));
        assert!(!names("ipvs.mode: no", "mode"));
    }

    #[test]
    fn verdict_and_paths_are_compared() {
        let expect = |valid, errors: &[&str]| ExpectConfig {
            valid,
            errors: errors.iter().map(ToString::to_string).collect(),
        };
        assert!(judge(&expect(true, &[]), true, "").is_ok());
        assert!(judge(&expect(true, &[]), false, "mode: no").is_err());
        assert!(judge(&expect(false, &["mode"]), false, "mode: no").is_ok());
        assert!(judge(&expect(false, &["mode", "burst"]), false, "mode: no").is_err());
        assert!(judge(&expect(false, &["mode"]), true, "mode").is_err());
    }
}

//! What a change must pass, on a fresh clone of the last commit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::passes::{self, Pass};
use crate::proc::{ignore_interrupt, output, run, say};
use crate::workspace::Workspace;

/// What must be passed.
const SCRIPT: &str = ".ci/run";

/// Clones, runs, and says at which commit it has last passed.
pub(crate) fn exec(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    ignore_interrupt();
    say(last_pass(workspace));
    if git(&workspace.root, &["status", "--porcelain"]).is_some_and(|changes| !changes.is_empty()) {
        say("changes that are not committed are no part of it");
    }
    let clone = Clone::of(&workspace.root, workspace.target.join("ci/checkout"))?;
    let mut script = Command::new(clone.0.join(SCRIPT));
    // What does not depend on where the sources are is compiled once for all clones.
    script.current_dir(&clone.0).env("CARGO_TARGET_DIR", workspace.target.join("ci/target"));
    let status = script.status().with_context(|| format!("cannot run {SCRIPT}"))?;
    say(last_pass(workspace));
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A clone, which goes with this value.
struct Clone(PathBuf);

impl Clone {
    fn of(root: &Path, path: PathBuf) -> anyhow::Result<Self> {
        // One that was cut off has left its own.
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        let clone = Self(path);
        run(Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(root).arg(&clone.0))?;
        Ok(clone)
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            say(format_args!("cannot remove {}: {error}", self.0.display()));
        }
    }
}

fn last_pass(workspace: &Workspace) -> String {
    let Some(Pass { commit, date, seconds }) = passes::list(workspace).pop() else {
        return format!("{SCRIPT} has not passed here yet");
    };
    let since = git(&workspace.root, &["rev-list", "--count", &format!("{commit}..HEAD")]);
    let since =
        since.map_or("not an ancestor of HEAD".into(), |count| format!("{count} commits before HEAD"));
    format!("{SCRIPT} last passed at {commit}, {since}, on {date} in {seconds} s")
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    output(Command::new("git").arg("-C").arg(root).args(args))
}

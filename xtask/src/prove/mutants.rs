//! Changes of the code that a proof must refute, one at a time, each on a copy.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use super::{Built, FOLDER, Prover};
use crate::proc::{run, say};
use crate::workspace::Workspace;

/// The crate that is changed.
const CODE: &str = "proxy-common";
/// What programs end with that refute something; others mean that nothing is decided.
const REFUTED: i32 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutants {
    mutant: Vec<Mutant>,
}

/// A change, and the proof that refutes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    /// Below `proxy-common/src`.
    file: String,
    /// Stands there once.
    from: String,
    to: String,
    proof: String,
    /// The proof tries all inputs.
    #[serde(default)]
    exhaustive: bool,
}

/// Has every mutant refuted.
pub(super) fn refute(workspace: &Workspace, prover: &Prover) -> anyhow::Result<()> {
    let list = fs::read_to_string(workspace.root.join(FOLDER).join("mutants.toml"))?;
    let mutants: Mutants = toml::from_str(&list).context("mutants.toml")?;
    let copy = workspace.target.join("prove/mutant");
    let mut missed = Vec::new();
    for mutant in &mutants.mutant {
        say(format_args!("{}: `{}` → `{}`", mutant.file, mutant.from, mutant.to));
        mutant.make(workspace, &copy)?;
        let built = Built::new(copy.join(FOLDER), workspace.target.join("prove/mutants"))?;
        let names = [mutant.proof.clone()];
        let status =
            if mutant.exhaustive { built.enumerate(&names)? } else { prover.follow(&built, &names)? };
        if status.code() != Some(REFUTED) {
            missed.push(format!("{}: {} -> {}", mutant.file, mutant.from, mutant.to));
        }
    }
    anyhow::ensure!(missed.is_empty(), "not refuted: {}", missed.join("; "));
    say(format_args!("all {} mutants are refuted", mutants.mutant.len()));
    Ok(())
}

impl Mutant {
    /// Copies both crates, and the workspace that one belongs to, and changes the copy.
    fn make(&self, workspace: &Workspace, copy: &Path) -> anyhow::Result<()> {
        if copy.exists() {
            fs::remove_dir_all(copy)?;
        }
        fs::create_dir_all(copy)?;
        for folder in [CODE, FOLDER] {
            let mut command = std::process::Command::new("cp");
            run(command.args(["-r", "--"]).arg(workspace.root.join(folder)).arg(copy.join(folder)))?;
        }
        let manifest = fs::read_to_string(workspace.root.join("Cargo.toml"))?;
        let of_one = |line: &str| {
            if line.starts_with("members =") { format!("members = [\"{CODE}\"]") } else { line.to_owned() }
        };
        fs::write(copy.join("Cargo.toml"), manifest.lines().map(of_one).collect::<Vec<_>>().join("\n"))?;
        let path = copy.join(CODE).join("src").join(&self.file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let times = text.matches(&self.from).count();
        anyhow::ensure!(times == 1, "{} has `{}` {times} times", self.file, self.from);
        Ok(fs::write(&path, text.replace(&self.from, &self.to))?)
    }
}

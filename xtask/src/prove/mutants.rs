//! Changes of the code that a proof must refute, one at a time, each on a copy.

use std::slice;

use anyhow::Context as _;
use serde::Deserialize;

use super::{Built, FOLDER, Prover};
use crate::proc::say;
use crate::variant::{self, Edit};
use crate::workspace::Workspace;

const LIST: &str = "proofs/mutants.toml";
/// What programs end with that refute something; others mean that nothing is decided.
const REFUTED: i32 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutants {
    mutant: Vec<Mutant>,
}

/// An edit, and the proof that refutes it.
#[derive(Deserialize)]
struct Mutant {
    #[serde(flatten)]
    edit: Edit,
    proof: String,
    /// The proof tries all inputs.
    #[serde(default)]
    exhaustive: bool,
}

/// Has every mutant refuted.
pub(super) fn refute(workspace: &Workspace, prover: &Prover) -> anyhow::Result<()> {
    let mutants: Mutants = variant::read_list(workspace, LIST)?;
    let copy = workspace.target.join("prove/mutant");
    let mut missed = Vec::new();
    for mutant in &mutants.mutant {
        say(&mutant.edit);
        variant::write(workspace, slice::from_ref(&mutant.edit), &copy).context(LIST)?;
        let built = Built::new(copy.join(FOLDER), workspace.target.join("prove/mutants"))?;
        let names = [mutant.proof.clone()];
        let status =
            if mutant.exhaustive { built.enumerate(&names)? } else { prover.follow(&built, &names)? };
        if status.code() != Some(REFUTED) {
            missed.push(mutant.edit.to_string());
        }
    }
    anyhow::ensure!(missed.is_empty(), "not refuted: {}", missed.join("; "));
    say(format_args!("all {} mutants are refuted", mutants.mutant.len()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_can_be_made() {
        let workspace = Workspace::find().unwrap();
        let mutants: Mutants = variant::read_list(&workspace, LIST).unwrap();
        for mutant in &mutants.mutant {
            variant::edited(&workspace, slice::from_ref(&mutant.edit)).unwrap();
        }
    }
}

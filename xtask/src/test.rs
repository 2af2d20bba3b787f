//! Runs the tiers, one after the other, and sums up what they report.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::binaries::{AGENT_VARIABLE, Binaries};
use crate::proc::{ignore_interrupt, say};
use crate::report::{Counts, Report};
use crate::tier::{Tier, cargo_test};
use crate::workspace::Workspace;
use crate::{control_plane, ebpf, machine};

/// What the user asked for.
struct Choice {
    tiers: Vec<Tier>,
    filter: Option<String>,
}

impl Choice {
    fn parse(words: &[String]) -> anyhow::Result<Self> {
        let tiers: Vec<Tier> = words.iter().filter_map(|word| Tier::by_name(word)).collect();
        let mut others = words.iter().filter(|word| Tier::by_name(word).is_none());
        let filter = others.next().cloned();
        anyhow::ensure!(
            others.next().is_none(),
            "at most one filter; the tiers are {}",
            Tier::ALL.map(Tier::name).join(", ")
        );
        Ok(Self { tiers: if tiers.is_empty() { Tier::ALL.to_vec() } else { tiers }, filter })
    }
}

/// Runs the tiers and prints the table.
pub(crate) fn run(workspace: &Workspace, words: &[String]) -> anyhow::Result<ExitCode> {
    let choice = Choice::parse(words)?;
    ignore_interrupt();
    let mut report = Report::default();
    let begin = Instant::now();
    let privileged = choice.tiers.iter().any(|tier| tier.needs_root());
    let obstacle = if privileged { machine::make_ready().err() } else { None };
    let binaries = if privileged && obstacle.is_none() {
        Some(Binaries::build(workspace)?)
    } else {
        ebpf::build(workspace)?;
        None
    };
    report.step("build", begin.elapsed());
    for tier in choice.tiers {
        let begin = Instant::now();
        let outcome = match (&binaries, &obstacle) {
            (_, Some(obstacle)) if tier.needs_root() => Ok(Outcome::Skipped(format!("{obstacle:#}"))),
            (binaries, _) => run_tier(workspace, tier, choice.filter.as_deref(), binaries.as_ref()),
        };
        match outcome {
            Ok(Outcome::Ran { counts, finished }) => {
                report.ran(tier.name(), counts, finished, choice.filter.is_some(), begin.elapsed());
            }
            Ok(Outcome::Skipped(reason)) => report.skipped(tier.name(), &reason),
            Err(error) => report.broken(tier.name(), &error, begin.elapsed()),
        }
    }
    Ok(report.finish())
}

enum Outcome {
    Ran { counts: Counts, finished: bool },
    Skipped(String),
}

fn run_tier(
    workspace: &Workspace,
    tier: Tier,
    filter: Option<&str>,
    binaries: Option<&Binaries>,
) -> anyhow::Result<Outcome> {
    let mut command = match (tier, binaries) {
        (Tier::Conformance, Some(binaries)) => {
            let mut command = binaries.command("conformance");
            command.args(filter.map(|filter| ["--case", filter]).into_iter().flatten());
            command
        }
        _ => cargo_test(workspace, tier, filter)?,
    };
    if let Some(binaries) = binaries {
        command.env(AGENT_VARIABLE, binaries.agent());
    }
    if tier == Tier::Cluster {
        if let Some(reason) = control_plane::obstacle() {
            return Ok(Outcome::Skipped(reason));
        }
        command.env(control_plane::VARIABLE, control_plane::find_or_build(workspace)?);
    }
    say(format_args!("tier {}", tier.name()));
    watch(command)
}

/// Runs a command, passes its output on, and adds up the closing lines in it. Both streams
/// go through one pipe, so that the lines stay in order.
fn watch(mut command: Command) -> anyhow::Result<Outcome> {
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    // The pipe ends when the last writer is gone, and the command holds two.
    drop(command);
    let mut counts = Counts::default();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        if let Some(more) = Counts::parse(&line) {
            counts += more;
        }
    }
    Ok(Outcome::Ran { counts, finished: child.wait()?.success() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_tiers_or_one_filter() {
        let parse =
            |words: &[&str]| Choice::parse(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        let check = |words: &[&str], tiers: &[Tier], filter: Option<&str>| {
            let choice = parse(words).unwrap();
            assert_eq!((choice.tiers.as_slice(), choice.filter.as_deref()), (tiers, filter), "{words:?}");
        };
        check(&[], &Tier::ALL, None);
        check(&["node", "hairpin"], &[Tier::Node], Some("hairpin"));
        check(&["hairpin"], &Tier::ALL, Some("hairpin"));
        assert!(parse(&["node", "a", "b"]).is_err());
    }
}

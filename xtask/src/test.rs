//! Runs the tiers, one after the other, and sums up what they report.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::binaries::{AGENT_VARIABLE, Binaries};
use crate::proc::{ignore_interrupt, say};
use crate::report::{Counts, Report, is_skip};
use crate::tier::{Tier, cargo_tests};
use crate::workspace::Workspace;
use crate::{binaries, charts, conformance, control_plane, ebpf, machine};

/// Where proptest looks for the seed of its random numbers.
const SEED_VARIABLE: &str = "PROPTEST_RNG_SEED";
/// The same in every run, so that a change is judged by the change. Others find more: set the variable.
const SEED: &str = "20261123";

/// What the user asked for.
struct Choice {
    tiers: Vec<Tier>,
    filter: Option<String>,
}

impl Choice {
    /// A filter alone is about test functions; cases are chosen by naming their tier too.
    fn parse(words: &[String]) -> anyhow::Result<Self> {
        let tiers: Vec<Tier> = words.iter().filter_map(|word| Tier::by_name(word)).collect();
        let mut others = words.iter().filter(|word| Tier::by_name(word).is_none());
        let filter = others.next().cloned();
        anyhow::ensure!(
            others.next().is_none(),
            "at most one filter; the tiers are {}",
            Tier::ALL.map(Tier::name).join(", ")
        );
        let all = Tier::ALL.into_iter().filter(|tier| filter.is_none() || *tier != Tier::Conformance);
        Ok(Self { tiers: if tiers.is_empty() { all.collect() } else { tiers }, filter })
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
        if choice.tiers.contains(&Tier::Faults) {
            binaries::build_next(workspace)?;
        }
        Some(Binaries::build(workspace)?)
    } else {
        ebpf::build(workspace, ebpf::Layout::This)?;
        None
    };
    report.step("build", begin.elapsed());
    let seed = std::env::var(SEED_VARIABLE).unwrap_or_else(|_| SEED.into());
    say(format_args!("property tests begin with {SEED_VARIABLE}={seed}"));
    let context = Context { workspace, filter: choice.filter, binaries, seed };
    for tier in choice.tiers {
        match obstacle.as_ref().filter(|_| tier.needs_root()) {
            Some(obstacle) => report.skipped(tier.name(), &format!("{obstacle:#}")),
            None => context.run_tier(tier, &mut report),
        }
    }
    Ok(report.finish())
}

/// What every tier is run with.
struct Context<'a> {
    workspace: &'a Workspace,
    filter: Option<String>,
    binaries: Option<Binaries>,
    /// Of the random numbers of property tests.
    seed: String,
}

impl Context<'_> {
    fn run_tier(&self, tier: Tier, report: &mut Report) {
        match (tier, &self.binaries) {
            (Tier::Conformance, Some(binaries)) => self.run_conformance(binaries, report),
            (Tier::Cluster, _) => match control_plane::obstacle() {
                Some(reason) => report.skipped(tier.name(), &reason),
                None => self.run(tier.name(), report, || {
                    let tools = charts::find_or_build(self.workspace)?;
                    let mut commands = self.with_control_plane(tier)?;
                    for command in &mut commands {
                        command.envs(tools.as_ref().map(|tools| (charts::VARIABLE, tools)));
                    }
                    Ok(commands)
                }),
            },
            // Only a part of it needs an API server, and says so without one.
            (Tier::Faults, _) if control_plane::obstacle().is_none() => {
                self.run(tier.name(), report, || self.with_control_plane(tier));
            }
            _ => self.run(tier.name(), report, || self.cargo_tests(tier)),
        }
    }

    fn run_conformance(&self, binaries: &Binaries, report: &mut Report) {
        for run in conformance::RUNS {
            match control_plane::obstacle().filter(|_| run.by_api_server) {
                Some(reason) => report.skipped(run.name, &reason),
                None => self.run(run.name, report, || {
                    Ok(vec![run.command(self.workspace, binaries, self.filter.as_deref())?])
                }),
            }
        }
    }

    fn with_control_plane(&self, tier: Tier) -> anyhow::Result<Vec<Command>> {
        let assets = control_plane::find_or_build(self.workspace)?;
        let mut commands = self.cargo_tests(tier)?;
        for command in &mut commands {
            command.env(control_plane::VARIABLE, &assets);
        }
        Ok(commands)
    }

    fn cargo_tests(&self, tier: Tier) -> anyhow::Result<Vec<Command>> {
        let mut commands = cargo_tests(self.workspace, tier, self.filter.as_deref())?;
        for command in &mut commands {
            command.env(SEED_VARIABLE, &self.seed);
            if let Some(binaries) = &self.binaries {
                command.env(AGENT_VARIABLE, binaries.agent());
            }
        }
        Ok(commands)
    }

    /// Times the preparation with the run, as part of what the tier costs.
    fn run(&self, name: &str, report: &mut Report, commands: impl FnOnce() -> anyhow::Result<Vec<Command>>) {
        let begin = Instant::now();
        say(format_args!("tier {name}"));
        let run = || {
            let (mut counts, mut finished) = (Counts::default(), true);
            for command in commands()? {
                let (more, succeeded) = watch(command)?;
                counts += more;
                finished &= succeeded;
            }
            anyhow::Ok((counts, finished))
        };
        match run() {
            Ok((counts, finished)) => {
                report.ran(name, counts, finished, self.filter.is_some(), begin.elapsed())
            }
            Err(error) => report.broken(name, &error, begin.elapsed()),
        }
    }
}

/// Runs a command, passes its output on, and adds up the closing lines in it. Both streams
/// go through one pipe, so that the lines stay in order. Also says whether it succeeded.
fn watch(mut command: Command) -> anyhow::Result<(Counts, bool)> {
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    // The pipe ends when the last writer is gone, and the command holds two.
    drop(command);
    let (mut counts, mut skips) = (Counts::default(), 0);
    for line in BufReader::new(reader).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        if let Some(more) = Counts::parse(&line) {
            counts += more;
        }
        skips += u32::from(is_skip(&line));
    }
    Ok((counts.with_skips(skips), child.wait()?.success()))
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
        check(&["hairpin"], &Tier::ALL[..5], Some("hairpin"));
        assert!(parse(&["node", "a", "b"]).is_err());
    }
}

//! One run of the tests: what it is prepared with, and what is run in which order.

mod parts;

use std::thread;
use std::time::{Duration, Instant};

use super::again;
use super::change::Change;
use super::conformance;
use super::libtest::{self, Executable};
use super::long::{self, Part};
use super::options::{Choice, Options};
use super::report::Report;
use super::runner::Runner;
use super::suite::{Suite, Test};
use super::tier::Tier;
use crate::binaries::{AGENT_VARIABLE, Binaries};
use crate::load::Load;
use crate::proc::{interrupted, say};
use crate::workspace::Workspace;
use crate::{charts, control_plane, ebpf, machine, next_version};

/// Where proptest looks for the seed of its random numbers.
const SEED_VARIABLE: &str = "PROPTEST_RNG_SEED";
/// The same in every run, so that a change is judged by the change. Others find more: set the variable.
const SEED: &str = "20261123";
/// The agent of another layout, as the tests are told of it.
const NEXT_VARIABLE: &str = "SHUNT_NEXT_BIN";

/// What the tests are run with.
pub(crate) struct Session<'a> {
    workspace: &'a Workspace,
    choice: Choice,
    /// Whether to run what takes long, changed or not.
    long: bool,
    change: Change,
    runner: Runner,
    executables: Vec<Executable>,
    /// Without them nothing runs that needs privileges.
    binaries: Option<Binaries>,
    obstacle: Option<anyhow::Error>,
    /// Of the random numbers of property tests.
    seed: String,
    cpus: usize,
    report: Report,
}

impl<'a> Session<'a> {
    /// Builds what the chosen tiers need.
    pub(crate) fn prepare(
        workspace: &'a Workspace,
        options: &Options,
        choice: Choice,
        change: Change,
    ) -> anyhow::Result<Self> {
        let begin = Instant::now();
        let failures = workspace.target.join("test-failures");
        if failures.exists() {
            std::fs::remove_dir_all(&failures)?;
        }
        std::fs::create_dir_all(&failures)?;
        let runner = Runner { repeat: options.repeat, shuffle: options.shuffle, load: None, failures };
        let seed = std::env::var(SEED_VARIABLE).unwrap_or_else(|_| SEED.into());
        let mut session = Self {
            workspace,
            long: options.long,
            report: Report::new(choice.filter.is_some()),
            choice,
            change,
            runner,
            executables: Vec::new(),
            binaries: None,
            obstacle: None,
            seed,
            cpus: thread::available_parallelism().map_or(1, usize::from),
        };
        session.build()?;
        session.runner.load =
            options.load.map(|factor| anyhow::Ok((factor, Load::start(factor)?))).transpose()?;
        session.report.step("build", begin.elapsed());
        say(format_args!("{}", session.change));
        say(format_args!("property tests begin with {SEED_VARIABLE}={}", session.seed));
        Ok(session)
    }

    fn build(&mut self) -> anyhow::Result<()> {
        let mut tiers = self.choice.tiers.clone();
        let is_privileged = tiers.iter().any(|tier| tier.needs_root());
        self.obstacle = if is_privileged { machine::make_ready().err() } else { None };
        let programs = is_privileged && self.obstacle.is_none();
        ebpf::build(self.workspace)?;
        if programs && tiers.contains(&Tier::Faults) && self.is_due(long::LAYOUT) {
            next_version::build(self.workspace)?;
        }
        say("building the tests and what they need");
        tiers.retain(|tier| programs || !tier.needs_root());
        self.executables = libtest::build(self.workspace, &tiers, programs)?;
        self.binaries = programs.then(|| Binaries::built(self.workspace));
        Ok(())
    }

    fn is_due(&self, part: Part) -> bool {
        self.reason_to_skip(part).is_none()
    }

    /// A filter is a wish for what it fits.
    fn reason_to_skip(&self, part: Part) -> Option<String> {
        let is_wanted =
            |filter: &String| part.name != long::LAYOUT.name || long::LAYOUT_TEST.contains(filter);
        let wanted = self.long || self.choice.filter.as_ref().is_some_and(is_wanted);
        part.reason_to_skip(wanted, &self.change)
    }

    /// Runs everything that was chosen.
    pub(crate) fn run(&mut self) {
        for tier in self.choice.tiers.clone() {
            match &self.obstacle {
                Some(obstacle) if tier.needs_root() => {
                    self.report.skipped(tier.name(), &format!("{obstacle:#}"));
                }
                _ => self.run_tier(tier),
            }
        }
        if self.choice.filter.is_none() {
            self.run_seeds();
            self.run_fuzz();
            self.run_proofs();
        }
        again::run_late(&mut self.report, &self.runner);
        if self.choice.filter.is_none() && self.runner.is_plain() {
            self.run_changed();
        }
    }

    /// What came of it. A run that was cut off has not passed, whatever did.
    pub(crate) fn finish(mut self) -> Report {
        if interrupted() {
            self.report.broken("interrupted", &anyhow::anyhow!("not everything ran"), Duration::ZERO);
        }
        self.report
    }

    fn run_tier(&mut self, tier: Tier) {
        match tier {
            Tier::Conformance => self.run_conformance(),
            Tier::Cluster => match control_plane::obstacle() {
                Some(reason) => self.report.skipped(tier.name(), &reason),
                None => self.run_suite(tier.name(), |session| session.cluster()),
            },
            Tier::Faults => {
                self.run_suite(tier.name(), |session| session.faults());
                self.say_if_not_due(long::LAYOUT);
            }
            _ => self.run_suite(tier.name(), |session| session.tests_of(tier)),
        }
    }

    fn run_conformance(&mut self) {
        for run in conformance::RUNS {
            if run.name == long::HOST.name && !self.is_due(long::HOST) {
                self.say_if_not_due(long::HOST);
                continue;
            }
            match control_plane::obstacle().filter(|_| run.by_api_server) {
                Some(reason) => self.report.skipped(run.name, &reason),
                None => self.run_suite(run.name, |session| {
                    let binaries = session.binaries.as_ref().ok_or_else(|| anyhow::anyhow!("no programs"))?;
                    run.suite(session.workspace, binaries, session.choice.filter.as_deref(), session.cpus)
                }),
            }
        }
    }

    fn say_if_not_due(&mut self, part: Part) {
        if let Some(reason) = self.reason_to_skip(part) {
            self.report.skipped(part.name, &reason);
        }
    }

    fn cluster(&self) -> anyhow::Result<Suite> {
        let assets = control_plane::find_or_build(self.workspace)?;
        let tools = charts::find_or_build(self.workspace)?;
        let mut suite = self.tests_of(Tier::Cluster)?;
        for test in &mut suite.tests {
            test.variables.push((control_plane::VARIABLE.into(), assets.clone().into()));
            test.variables.extend(tools.clone().map(|tools| (charts::VARIABLE.into(), tools.into())));
        }
        Ok(suite)
    }

    fn faults(&self) -> anyhow::Result<Suite> {
        let mut suite = self.tests_of(Tier::Faults)?;
        if !self.is_due(long::LAYOUT) {
            suite.tests.retain(|test| test.name != long::LAYOUT_TEST);
        }
        // Only a part of it needs an API server, and says so without one.
        if control_plane::obstacle().is_none() {
            let assets = control_plane::find_or_build(self.workspace)?;
            for test in &mut suite.tests {
                test.variables.push((control_plane::VARIABLE.into(), assets.clone().into()));
            }
        }
        Ok(suite)
    }

    fn tests_of(&self, tier: Tier) -> anyhow::Result<Suite> {
        let mut tests = Vec::new();
        for executable in self.executables.iter().filter(|executable| executable.tier == tier) {
            tests.extend(executable.tests()?);
        }
        let is_chosen =
            |test: &Test| self.choice.filter.as_ref().is_none_or(|filter| test.name.contains(filter));
        tests.retain(is_chosen);
        for test in &mut tests {
            test.variables.push((SEED_VARIABLE.into(), self.seed.clone().into()));
            if let Some(binaries) = &self.binaries {
                test.variables.push((AGENT_VARIABLE.into(), binaries.path("shunt").into()));
                test.variables.push((NEXT_VARIABLE.into(), binaries.path(next_version::AGENT).into()));
            }
        }
        let may_be_late = tier.may_be_late();
        Ok(Suite { name: tier.name().into(), tests, jobs: self.cpus, may_be_late, fixture: None })
    }

    /// Times the preparation with the run, as part of what the suite costs.
    fn run_suite(&mut self, name: &str, suite: impl FnOnce(&Self) -> anyhow::Result<Suite>) {
        let begin = Instant::now();
        if interrupted() {
            return self.report.skipped(name, "interrupted");
        }
        say(format_args!("tier {name}"));
        match suite(self) {
            Ok(suite) => {
                let outcomes = self.runner.run(&suite);
                self.report.ran(suite, outcomes, begin.elapsed());
            }
            Err(error) => self.report.broken(name, &error, begin.elapsed()),
        }
    }
}

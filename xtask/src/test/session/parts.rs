//! The parts that take long, as they are run.

use std::mem;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{SEED_VARIABLE, Session};
use crate::proc::say;
use crate::test::suite::{Suite, Test};
use crate::test::tier::Tier;
use crate::test::{changed, long};
use crate::{fuzz, prove};

/// How long each of the two is fuzzed.
const FUZZING: Duration = Duration::from_secs(60);

impl Session<'_> {
    /// The model tier with numbers that no run had before.
    pub(super) fn run_seeds(&mut self) {
        if !self.choice.tiers.contains(&Tier::Model) {
            return;
        }
        if !self.is_due(long::SEEDS) {
            return self.say_if_not_due(long::SEEDS);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let fixed = mem::replace(&mut self.seed, now.as_secs().to_string());
        say(format_args!("property tests begin with {SEED_VARIABLE}={}", self.seed));
        self.run_suite(long::SEEDS.name, |session| {
            let mut suite = session.tests_of(Tier::Model)?;
            suite.name = long::SEEDS.name.into();
            Ok(suite)
        });
        self.seed = fixed;
    }

    pub(super) fn run_fuzz(&mut self) {
        if !self.choice.tiers.contains(&Tier::Packet) || self.binaries.is_none() {
            return;
        }
        if !self.is_due(long::FUZZ) {
            return self.say_if_not_due(long::FUZZ);
        }
        let begin = Instant::now();
        match fuzz::fuzz(self.workspace, FUZZING, false) {
            Ok(()) => self.report.succeeded(long::FUZZ.name, begin.elapsed()),
            Err(error) => self.report.broken(long::FUZZ.name, &error, begin.elapsed()),
        }
    }

    /// What is proved, and that it can be refuted.
    pub(super) fn run_proofs(&mut self) {
        if !self.long || !self.choice.tiers.contains(&Tier::Model) {
            return;
        }
        let begin = Instant::now();
        match prove::prove(self.workspace, &[]).and_then(|()| prove::prove_mutants(self.workspace)) {
            Ok(()) => self.report.succeeded(long::PROOFS, begin.elapsed()),
            Err(error) => self.report.broken(long::PROOFS, &error, begin.elapsed()),
        }
    }

    /// Of what has passed, the tests that were added or changed, again and under load.
    pub(super) fn run_changed(&mut self) {
        if self.binaries.is_none() {
            return;
        }
        let (name, begin) = (long::REPEATS, Instant::now());
        let suites = match changed::tests(&self.workspace.root, &self.change) {
            Ok(changed) => self.of_those_that_ran(&changed),
            Err(error) => return self.report.broken(name, &error, begin.elapsed()),
        };
        if suites.is_empty() {
            return self.report.skipped(name, &format!("no changed test ran ({})", self.change));
        }
        let runner = match self.runner.under_load(long::TIMES, long::LOAD) {
            Ok(runner) => runner,
            Err(error) => return self.report.skipped(name, &format!("{error:#}")),
        };
        for suite in suites {
            say(format_args!("{}", suite.name));
            let begin = Instant::now();
            let outcomes = runner.run(&suite);
            self.report.ran(suite, outcomes, begin.elapsed());
        }
    }

    /// Suites of these tests, as they ran before.
    fn of_those_that_ran(&self, names: &[String]) -> Vec<Suite> {
        let is_chosen = |test: &Test| {
            let name = test.name.rsplit_once(": ").map_or(test.name.as_str(), |(_, case)| case);
            names.iter().any(|chosen| chosen == name)
        };
        let (mut suites, mut left) = (Vec::new(), if self.long { usize::MAX } else { long::MOST });
        for ran in self.report.tests().filter(|ran| ran.suite.may_be_late) {
            let mut chosen: Vec<Test> =
                ran.suite.tests.iter().filter(|test| is_chosen(test)).cloned().collect();
            if chosen.len() > left {
                say(format_args!(
                    "{} of {} changed tests of {} are not repeated; --long repeats all",
                    chosen.len() - left,
                    chosen.len(),
                    ran.suite.name
                ));
                chosen.truncate(left);
            }
            left -= chosen.len();
            if !chosen.is_empty() {
                suites.push(Suite {
                    name: format!("{}: {}", long::REPEATS, ran.suite.name),
                    tests: chosen,
                    ..ran.suite.clone()
                });
            }
        }
        suites
    }
}

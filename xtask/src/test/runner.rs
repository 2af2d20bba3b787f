//! Runs the tests of a suite, several at a time, and prints a line for each.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use super::process::{self, Ended};
use super::suite::{Fixture, Suite, Test};
use super::verdict::{Failure, Kind, Verdict};
use crate::load::{Factor, Load};
use crate::proc::{end, interrupted};

/// No test takes longer.
const LIMIT: Duration = Duration::from_secs(120);
/// How long a fixture may take to clean up.
const ENDS: Duration = Duration::from_secs(30);

/// How tests are run.
pub(crate) struct Runner {
    /// How often each of them.
    pub(crate) repeat: u32,
    /// Seed of their order; without it the order of their names.
    pub(crate) shuffle: Option<u64>,
    /// On how slow a machine.
    pub(crate) load: Option<(Factor, Load)>,
    /// Where the output of tests that fail is kept.
    pub(crate) failures: PathBuf,
}

/// What came of a test that was run any number of times.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    /// Of all runs; a failure is the first.
    pub(crate) verdict: Verdict,
    pub(crate) runs: u32,
    pub(crate) passed: u32,
    pub(crate) time: Duration,
    /// What it failed with before it passed alone.
    pub(crate) first_failure: Option<String>,
}

impl Runner {
    /// Whether each test is run once, on the machine as it is.
    pub(crate) fn is_plain(&self) -> bool {
        self.repeat == 1 && self.load.is_none()
    }

    /// The same, but each test so many times and under load.
    pub(crate) fn under_load(&self, repeat: u32, factor: Factor) -> anyhow::Result<Self> {
        let load = Some((factor, Load::start(factor)?));
        Ok(Self { repeat, shuffle: self.shuffle, load, failures: self.failures.clone() })
    }

    /// Runs the suite, its tests in order, and all of them before any is run again.
    pub(crate) fn run(&self, suite: &Suite) -> Vec<Outcome> {
        let outcome = |test: &Test| Outcome {
            name: test.name.clone(),
            verdict: Verdict::Passed,
            runs: 0,
            passed: 0,
            time: Duration::ZERO,
            first_failure: None,
        };
        let outcomes = Mutex::new(suite.tests.iter().map(outcome).collect::<Vec<_>>());
        let order = self.order(suite.tests.len());
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..suite.jobs.min(suite.tests.len()) {
                scope.spawn(|| {
                    let mut worker = Worker { suite, runner: self, fixture: None };
                    while let Some(&place) = order.get(next.fetch_add(1, Ordering::Relaxed))
                        && !interrupted()
                    {
                        let ended = worker.run(&suite.tests[place]);
                        let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                        self.note(&mut outcomes[place], ended);
                    }
                });
            }
        });
        let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Those that an interrupt came before.
        outcomes.retain(|outcome| outcome.runs > 0);
        outcomes
    }

    fn order(&self, tests: usize) -> Vec<usize> {
        let mut random = self.shuffle.map(fastrand::Rng::with_seed);
        let round = |_| {
            let mut round: Vec<usize> = (0..tests).collect();
            if let Some(random) = &mut random {
                random.shuffle(&mut round);
            }
            round
        };
        (0..self.repeat).flat_map(round).collect()
    }

    /// Takes a run into account, and prints it. The output of the first failure is kept.
    fn note(&self, outcome: &mut Outcome, ended: Ended) {
        outcome.runs += 1;
        outcome.time += ended.time;
        let word = match &ended.verdict {
            Verdict::Passed => "ok",
            Verdict::Skipped(_) => "skip",
            Verdict::Failed(failure) => failure.kind.word(),
        };
        let name = &outcome.name;
        println!("{word:<5} {:>6.2} s  {name}{}", ended.time.as_secs_f64(), reason(&ended.verdict));
        match ended.verdict {
            Verdict::Passed => outcome.passed += 1,
            Verdict::Failed(_) if !matches!(outcome.verdict, Verdict::Failed(_)) => {
                println!("---- output of {name}\n{}\n---- end of it", ended.output.trim_end());
                if let Err(error) = self.keep(name, &ended.output) {
                    println!("{error:#}");
                }
                outcome.verdict = ended.verdict;
            }
            Verdict::Failed(_) => {}
            Verdict::Skipped(_) => outcome.verdict = ended.verdict,
        }
    }

    fn keep(&self, name: &str, output: &str) -> anyhow::Result<()> {
        let path = self.failures.join(name.replace(['/', ' '], "_"));
        fs::write(&path, output).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn reason(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Passed => String::new(),
        Verdict::Skipped(reason) => format!(": {reason}"),
        Verdict::Failed(failure) => format!(": {}", failure.reason),
    }
}

/// One of those that run at a time.
struct Worker<'a> {
    suite: &'a Suite,
    runner: &'a Runner,
    fixture: Option<Running>,
}

impl Worker<'_> {
    fn run(&mut self, test: &Test) -> Ended {
        self.try_to_run(test).unwrap_or_else(|error| {
            let reason = format!("cannot be run: {error:#}");
            let verdict = Verdict::Failed(Failure { kind: Kind::Wrong, reason });
            Ended { verdict, output: String::new(), time: Duration::ZERO }
        })
    }

    fn try_to_run(&mut self, test: &Test) -> anyhow::Result<Ended> {
        let mut command = test.command();
        if let Some(fixture) = &self.suite.fixture {
            let running = match &mut self.fixture {
                Some(running) => running,
                None => self.fixture.insert(Running::start(fixture)?),
            };
            command.env(fixture.variable, &running.line);
        }
        let limit = match &self.runner.load {
            Some((factor, load)) => {
                load.hold(&mut command)?;
                LIMIT.mul_f64(factor.0)
            }
            None => LIMIT,
        };
        let ended = process::run(command, &self.runner.failures, limit)?;
        // It may be to blame, and a test that was cut off may have left it in any state.
        if matches!(ended.verdict, Verdict::Failed(_)) {
            self.fixture = None;
        }
        Ok(ended)
    }
}

/// A fixture that is ready; ends with this value.
struct Running {
    child: Child,
    line: String,
}

impl Running {
    fn start(fixture: &Fixture) -> anyhow::Result<Self> {
        let name = &fixture.test.name;
        let mut command = fixture.test.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run {name}"))?;
        let output = child.stdout.take().context("no pipe")?;
        let mut running = Self { child, line: String::new() };
        BufReader::new(output).read_line(&mut running.line).with_context(|| name.clone())?;
        anyhow::ensure!(running.line.ends_with('\n'), "{name} ended before it was ready");
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended then, one way or another.
        let _ = end(&mut self.child, libc::SIGTERM, ENDS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::scratch::Scratch;
    use std::ffi::OsString;

    fn runner(folder: &Scratch, repeat: u32, shuffle: Option<u64>) -> Runner {
        Runner { repeat, shuffle, load: None, failures: folder.path().to_owned() }
    }

    fn test(name: &str, script: &str) -> Test {
        let args = ["-c", script].map(OsString::from).to_vec();
        Test { name: name.into(), program: "sh".into(), args, folder: "/".into(), ..Test::default() }
    }

    fn suite(tests: Vec<Test>, fixture: Option<Fixture>) -> Suite {
        Suite { name: "shells".into(), tests, jobs: 2, may_be_late: true, fixture }
    }

    const PASS: &str = "echo 1 passed, 0 failed, 0 skipped";

    #[test]
    fn each_test_has_its_own_verdict() {
        let tests =
            vec![test("good", PASS), test("bad", "echo Error: no; exit 1"), test("odd", "kill -9 $$")];
        let folder = Scratch::create();
        let outcomes = runner(&folder, 2, None).run(&suite(tests, None));
        let passed = outcomes.iter().map(|o| (o.name.as_str(), o.passed, o.runs)).collect::<Vec<_>>();
        assert_eq!(passed, [("good", 2, 2), ("bad", 0, 2), ("odd", 0, 2)]);
        assert!(matches!(&outcomes[1].verdict, Verdict::Failed(f) if f.reason == "Error: no"));
    }

    #[test]
    fn a_seed_has_its_order() {
        let folder = Scratch::create();
        let order = |seed| runner(&folder, 2, Some(seed)).order(20);
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut first: Vec<usize> = order(1)[..20].to_vec();
        first.sort_unstable();
        assert_eq!(first, (0..20).collect::<Vec<_>>(), "all of them before any is run again");
    }

    #[test]
    fn a_fixture_is_shared_by_those_that_come_one_after_the_other() {
        let serve = test("server", "echo $$; cat");
        let fixture = Fixture { test: serve, variable: "SERVER" };
        let check = format!("kill -0 $SERVER && {PASS}");
        let mut suite = suite((0..4).map(|n| test(&n.to_string(), &check)).collect(), Some(fixture));
        suite.jobs = 1;
        let folder = Scratch::create();
        let outcomes = runner(&folder, 1, None).run(&suite);
        assert_eq!(outcomes.iter().map(|outcome| outcome.passed).sum::<u32>(), 4, "{outcomes:?}");
    }

    #[test]
    fn a_fixture_that_does_not_start_fails_the_tests() {
        let fixture = Fixture { test: test("server", "exit 1"), variable: "SERVER" };
        let folder = Scratch::create();
        let outcomes = runner(&folder, 1, None).run(&suite(vec![test("a", PASS)], Some(fixture)));
        assert!(matches!(&outcomes[0].verdict, Verdict::Failed(f) if f.reason.contains("server")));
    }
}

//! Runs tests once more that failed because a deadline passed, and for no other reason. A machine
//! that was too slow for a few tests is no fault of a change; many of them are no accident.

use super::report::{Report, Tests};
use super::runner::{Outcome, Runner};
use super::suite::Suite;
use super::verdict::{Failure, Kind, Verdict};
use crate::proc::say;

/// With more than these, none is run again.
const MOST: usize = 3;

/// Runs each of them alone. One that passes has passed, and is reported as flaky.
pub(crate) fn run_late(report: &mut Report, runner: &Runner) {
    let late: usize =
        report.tests().map(|tests| tests.outcomes.iter().filter(|o| is_late(tests, o)).count()).sum();
    if late == 0 {
        return;
    }
    if late > MOST {
        say(format_args!("{late} tests were late: more than {MOST}, so none is run again"));
        return;
    }
    for tests in report.tests_mut() {
        for place in 0..tests.outcomes.len() {
            if is_late(tests, &tests.outcomes[place]) {
                run_alone(tests, place, runner);
            }
        }
    }
}

fn is_late(tests: &Tests, outcome: &Outcome) -> bool {
    let failed_late = matches!(&outcome.verdict, Verdict::Failed(Failure { kind: Kind::Late, .. }));
    // Of several runs the share that passed is what was asked for.
    failed_late && tests.suite.may_be_late && outcome.runs == 1
}

fn run_alone(tests: &mut Tests, place: usize, runner: &Runner) {
    let Tests { suite, outcomes } = tests;
    let name = outcomes[place].name.clone();
    say(format_args!("once more, alone: {name}"));
    let only = Suite {
        tests: suite.tests.iter().filter(|test| test.name == name).cloned().collect(),
        jobs: 1,
        name,
        fixture: suite.fixture.clone(),
        may_be_late: true,
    };
    let passed = runner.run(&only).pop().is_some_and(|outcome| outcome.verdict == Verdict::Passed);
    if let (Verdict::Failed(failure), true) = (&outcomes[place].verdict, passed) {
        outcomes[place].first_failure = Some(failure.reason.clone());
        outcomes[place].verdict = Verdict::Passed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::test::{scratch::Scratch, suite::Test};

    /// A test that is late the first time, and passes from then on.
    fn once(folder: &std::path::Path, name: &str, first: &str) -> Test {
        let mark = folder.join(name);
        let script = format!(
            "[ -e {0} ] && echo 1 passed, 0 failed, 0 skipped && exit; touch {0}; echo 'Error: {first}'; exit 1",
            mark.display()
        );
        let args = ["-c".into(), script.into()].into();
        Test { name: name.into(), program: "sh".into(), args, folder: "/".into(), ..Test::default() }
    }

    fn verdicts(label: &str, tests: &[(&str, &str)], may_be_late: bool) -> Vec<(bool, bool)> {
        let folder = Scratch::create();
        let tests = tests.iter().map(|(name, first)| once(folder.path(), name, first)).collect();
        let suite = Suite { name: label.into(), tests, jobs: 1, may_be_late, fixture: None };
        let runner = Runner { repeat: 1, shuffle: None, load: None, failures: folder.path().to_owned() };
        let outcomes = runner.run(&suite);
        let mut report = Report::new(false);
        report.ran(suite, outcomes, Duration::ZERO);
        run_late(&mut report, &runner);
        let outcomes = report.tests().flat_map(|tests| tests.outcomes.clone());
        outcomes.map(|o| (o.verdict == Verdict::Passed, o.first_failure.is_some())).collect()
    }

    #[test]
    fn only_late_ones_get_another_run() {
        let tests = [("slow", "late: no answer"), ("broken", "reset by the peer")];
        assert_eq!(verdicts("kinds", &tests, true), [(true, true), (false, false)]);
        assert_eq!(verdicts("code", &tests, false), [(false, false), (false, false)]);
    }

    #[test]
    fn many_are_no_accident() {
        let tests = [("a", "late: 1"), ("b", "late: 2"), ("c", "late: 3"), ("d", "late: 4")];
        assert_eq!(verdicts("many", &tests, true), [(false, false); 4]);
        assert_eq!(verdicts("few", &tests[..3], true), [(true, true); 3]);
    }
}

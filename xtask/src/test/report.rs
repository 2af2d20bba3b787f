//! Counts results per suite, and prints the table, what failed, and the closing line.

use std::fmt;
use std::ops::AddAssign;
use std::process::ExitCode;
use std::time::Duration;

use super::flaky::{Flaky, LIST};
use super::runner::Outcome;
use super::suite::Suite;
use super::verdict::Verdict;

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) skipped: u32,
}

impl Counts {
    /// Reads a closing line: libtest's, or `N passed, N failed, N skipped`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        let (list, separator) = match line.strip_prefix("test result: ") {
            Some(rest) => (rest.split_once(". ")?.1, ';'),
            None => (line, ','),
        };
        let mut counts = Self::default();
        let mut seen = 0;
        for part in list.split(separator) {
            let Some((number, word)) = part.trim().split_once(' ') else { continue };
            let Ok(number) = number.parse::<u32>() else { continue };
            match word {
                "passed" => counts.passed = number,
                "failed" => counts.failed = number,
                "skipped" | "ignored" => counts.skipped = number,
                _ => continue,
            }
            seen += 1;
        }
        (seen == 3).then_some(counts)
    }

    fn of(outcomes: &[Outcome]) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            match outcome.verdict {
                Verdict::Passed => counts.passed += 1,
                Verdict::Failed(_) => counts.failed += 1,
                Verdict::Skipped(_) => counts.skipped += 1,
            }
        }
        counts
    }

    fn total(self) -> u32 {
        self.passed + self.failed + self.skipped
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// One line of the table.
#[derive(Debug)]
struct Row {
    name: String,
    content: Content,
    time: Duration,
}

#[derive(Debug)]
enum Content {
    Tests(Tests),
    /// Counts, and why it was skipped, or what went wrong.
    Other(Counts, String),
}

/// A suite that ran.
#[derive(Debug)]
pub(crate) struct Tests {
    pub(crate) suite: Suite,
    pub(crate) outcomes: Vec<Outcome>,
}

/// The table of a whole run.
#[derive(Debug)]
pub(crate) struct Report {
    rows: Vec<Row>,
    /// Whether no tests at all are a failure.
    filtered: bool,
}

impl Report {
    pub(crate) fn new(filtered: bool) -> Self {
        Self { rows: Vec::new(), filtered }
    }

    /// Tests that ran.
    pub(crate) fn ran(&mut self, suite: Suite, outcomes: Vec<Outcome>, time: Duration) {
        let name = suite.name.clone();
        self.rows.push(Row { name, content: Content::Tests(Tests { suite, outcomes }), time });
    }

    /// Tests that cannot or need not run here count as one that is skipped.
    pub(crate) fn skipped(&mut self, name: &str, reason: &str) {
        let counts = Counts { skipped: 1, ..Counts::default() };
        self.other(name, counts, format!("skipped: {reason}"), Duration::ZERO);
    }

    /// Something that did not get as far as its tests counts as one that failed.
    pub(crate) fn broken(&mut self, name: &str, error: &anyhow::Error, time: Duration) {
        self.other(name, Counts { failed: 1, ..Counts::default() }, format!("{error:#}"), time);
    }

    /// Something else than tests that went well.
    pub(crate) fn succeeded(&mut self, name: &str, time: Duration) {
        self.other(name, Counts { passed: 1, ..Counts::default() }, String::new(), time);
    }

    /// A step that holds no tests: only its time is shown.
    pub(crate) fn step(&mut self, name: &str, time: Duration) {
        self.other(name, Counts::default(), "no tests".to_owned(), time);
    }

    fn other(&mut self, name: &str, counts: Counts, note: String, time: Duration) {
        self.rows.push(Row { name: name.to_owned(), content: Content::Other(counts, note), time });
    }

    /// The suites that ran.
    pub(crate) fn tests(&self) -> impl Iterator<Item = &Tests> {
        self.rows.iter().filter_map(|row| match &row.content {
            Content::Tests(tests) => Some(tests),
            Content::Other(..) => None,
        })
    }

    /// The same, to be changed.
    pub(crate) fn tests_mut(&mut self) -> impl Iterator<Item = &mut Tests> {
        self.rows.iter_mut().filter_map(|row| match &mut row.content {
            Content::Tests(tests) => Some(tests),
            Content::Other(..) => None,
        })
    }

    /// Prints the table and the closing line; the exit status says whether all is well.
    pub(crate) fn finish(self, known: &Flaky) -> ExitCode {
        let mut total = Counts::default();
        println!("\n{:<30} {:>7} {:>7} {:>7} {:>9}", "", "passed", "failed", "skipped", "time");
        for row in &self.rows {
            let (counts @ Counts { passed, failed, skipped }, note) = self.counts(row);
            let seconds = format!("{:.1} s", row.time.as_secs_f64());
            let line = format!("{:<30} {passed:>7} {failed:>7} {skipped:>7} {seconds:>9}  {note}", row.name);
            println!("{}", line.trim_end());
            total += counts;
        }
        let outcomes = || self.tests().flat_map(|tests| &tests.outcomes);
        outcomes().filter_map(failure).for_each(|line| println!("failed: {line}"));
        let flaky: Vec<String> = outcomes().filter_map(|outcome| flaky(outcome, known)).collect();
        flaky.iter().for_each(|line| println!("flaky: {line}"));
        if !flaky.is_empty() {
            println!("{} flaky: mend them; until then they belong in {LIST}", flaky.len());
        }
        println!("{total}");
        if total.failed == 0 && total.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// What a row counts as, and what there is to say of it.
    fn counts<'a>(&self, row: &'a Row) -> (Counts, &'a str) {
        let tests = match &row.content {
            Content::Other(counts, note) => return (*counts, note),
            Content::Tests(tests) => tests,
        };
        let mut counts = Counts::of(&tests.outcomes);
        if counts.total() > 0 {
            return (counts, "");
        }
        counts.failed = u32::from(!self.filtered);
        (counts, if self.filtered { "nothing matches the filter" } else { "ran no tests" })
    }
}

/// What to say of a test that failed.
fn failure(outcome: &Outcome) -> Option<String> {
    let Verdict::Failed(failure) = &outcome.verdict else { return None };
    let Outcome { name, runs, passed, .. } = outcome;
    let share = if *runs > 1 { format!(", passed {passed} of {runs} times") } else { String::new() };
    Some(format!("{name} ({}{share}): {}", failure.kind.word(), failure.reason))
}

/// What to say of a test that passed when it was run once more.
fn flaky(outcome: &Outcome, known: &Flaky) -> Option<String> {
    let first = outcome.first_failure.as_ref()?;
    let standing = if known.knows(&outcome.name) { "known" } else { "new" };
    Some(format!("{} ({standing}): {first}", outcome.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::verdict::{Failure, Kind};

    fn outcome(verdict: Verdict) -> Outcome {
        Outcome {
            name: "node::a".into(),
            verdict,
            runs: 5,
            passed: 3,
            time: Duration::ZERO,
            first_failure: None,
        }
    }

    #[test]
    fn reads_both_kinds_of_closing_line() {
        let check = |line, expected| assert_eq!(Counts::parse(line), expected, "{line}");
        let counts = Some(Counts { passed: 5, failed: 1, skipped: 2 });
        check(
            "test result: FAILED. 5 passed; 1 failed; 2 ignored; 0 measured; 3 filtered out; finished in 0.01s",
            counts,
        );
        check("5 passed, 1 failed, 2 skipped", counts);
        check("test a::b ... ok", None);
        check("5 passed, which is fine", None);
    }

    #[test]
    fn a_failure_says_how_often_the_test_passed() {
        let late = Failure { kind: Kind::Late, reason: "no answer".into() };
        let text = failure(&outcome(Verdict::Failed(late)));
        assert_eq!(text.unwrap(), "node::a (late, passed 3 of 5 times): no answer");
        assert_eq!(failure(&outcome(Verdict::Passed)), None);
    }

    #[test]
    fn no_tests_is_a_failure() {
        let failed = |filtered| {
            let mut report = Report::new(filtered);
            report.ran(Suite::default(), Vec::new(), Duration::ZERO);
            report.counts(&report.rows[0]).0.failed
        };
        assert_eq!((failed(false), failed(true)), (1, 0));
    }
}

//! Counts results per tier, and prints the table and the closing line.

use std::fmt;
use std::ops::AddAssign;
use std::process::ExitCode;
use std::time::Duration;

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

    /// Takes tests that said of themselves that they did not run from those that passed, as
    /// libtest has it.
    pub(crate) fn with_skips(self, skips: u32) -> Self {
        Self { passed: self.passed.saturating_sub(skips), skipped: self.skipped + skips, ..self }
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
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) counts: Counts,
    pub(crate) time: Duration,
    /// Why it was skipped, or what went wrong beside failed tests.
    pub(crate) note: String,
}

/// The table of a whole run.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// A tier that ran. One that found nothing to run, or broke off, has failed.
    pub(crate) fn ran(
        &mut self,
        name: &str,
        mut counts: Counts,
        finished: bool,
        filtered: bool,
        time: Duration,
    ) {
        let note = match (finished, counts.failed, counts.total()) {
            (false, 0, _) => "broke off",
            (_, _, 0) if !filtered => "ran no tests",
            (_, _, 0) => "nothing matches the filter",
            _ => "",
        };
        if (!finished && counts.failed == 0) || (counts.total() == 0 && !filtered) {
            counts.failed += 1;
        }
        self.rows.push(Row { name: name.to_owned(), counts, time, note: note.to_owned() });
    }

    /// A tier that cannot run here counts as one skipped test.
    pub(crate) fn skipped(&mut self, name: &str, reason: &str) {
        let counts = Counts { skipped: 1, ..Counts::default() };
        self.rows.push(Row {
            name: name.to_owned(),
            counts,
            time: Duration::ZERO,
            note: format!("skipped: {reason}"),
        });
    }

    /// A tier whose preparation failed counts as one failed test.
    pub(crate) fn broken(&mut self, name: &str, error: &anyhow::Error, time: Duration) {
        let counts = Counts { failed: 1, ..Counts::default() };
        self.rows.push(Row { name: name.to_owned(), counts, time, note: format!("{error:#}") });
    }

    /// A step that holds no tests: only its time is shown.
    pub(crate) fn step(&mut self, name: &str, time: Duration) {
        self.rows.push(Row {
            name: name.to_owned(),
            counts: Counts::default(),
            time,
            note: "no tests".to_owned(),
        });
    }

    /// Prints the table and the closing line; the exit status says whether all is well.
    pub(crate) fn finish(self) -> ExitCode {
        let mut total = Counts::default();
        println!("\n{:<30} {:>7} {:>7} {:>7} {:>9}", "", "passed", "failed", "skipped", "time");
        for Row { name, counts, time, note } in self.rows {
            let Counts { passed, failed, skipped } = counts;
            let seconds = format!("{:.1} s", time.as_secs_f64());
            println!(
                "{}",
                format!("{name:<30} {passed:>7} {failed:>7} {skipped:>7} {seconds:>9}  {note}").trim_end()
            );
            total += counts;
        }
        println!("{total}");
        if total.failed == 0 && total.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Whether a test says that it did not run (`skip::skipped` of the test harness).
pub(crate) fn is_skip(line: &str) -> bool {
    line.starts_with("skipped test ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_skip_themselves_have_not_passed() {
        assert!(is_skip("skipped test xdp::a_bond: this kernel has no such devices"));
        assert!(!is_skip("test xdp::a_bond ... ok"));
        let counts = Counts { passed: 5, failed: 1, skipped: 2 };
        assert_eq!(counts.with_skips(2), Counts { passed: 3, failed: 1, skipped: 4 });
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
}

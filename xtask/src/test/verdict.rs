//! What came of a test, read from its exit status and its output.

use super::report::Counts;

/// What came of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// Why it did not run.
    Skipped(String),
    Failed(Failure),
}

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    /// The line that says it best.
    pub(crate) reason: String,
}

/// How a test failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Something came out that must not.
    Wrong,
    /// A deadline passed, and nothing contradicts what was to come.
    Late,
    /// The test did not end, and was ended.
    Hung,
}

impl Kind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Wrong => "wrong",
            Self::Late => "late",
            Self::Hung => "hung",
        }
    }
}

/// Begins the text of an error of the test harness that a deadline has passed (`tests::late`).
const LATE: &str = "late: ";
/// Begins a line of a test that counts what is lost (`tests::load`): whatever happens, it happened.
const LOSSLESS: &str = "lossless test ";
/// Begins a line of a test that says why it does not run here (`tests::skip`).
const SKIPPED: &str = "skipped test ";

impl Verdict {
    /// Of a test that has ended by itself.
    pub(crate) fn read(succeeded: bool, output: &str) -> Self {
        let counts = output.lines().rev().find_map(Counts::parse);
        match counts {
            Some(Counts { passed: 1, failed: 0, .. }) if succeeded => match reason_to_skip(output) {
                Some(reason) => Self::Skipped(reason),
                None => Self::Passed,
            },
            Some(Counts { passed: 0, failed: 0, skipped: 1 }) => {
                Self::Skipped(reason_to_skip(output).unwrap_or_else(|| "ignored".into()))
            }
            _ => Self::Failed(Failure::read(output)),
        }
    }
}

fn reason_to_skip(output: &str) -> Option<String> {
    let reason = |line: &str| {
        let rest = line.strip_prefix(SKIPPED).or_else(|| line.strip_prefix("skip "))?;
        Some(rest.split_once(": ")?.1.to_owned())
    };
    output.lines().find_map(reason)
}

impl Failure {
    fn read(output: &str) -> Self {
        let lines: Vec<&str> = output.lines().map(str::trim).collect();
        let lines = || lines.iter().copied();
        let is_lossless = output.lines().any(|line| line.starts_with(LOSSLESS));
        // What was printed before is not what the test has failed with.
        let last = lines().rposition(is_verdict).unwrap_or(usize::MAX);
        let late = lines().skip(last).find(|line| is_late(line)).filter(|_| !is_lossless);
        let after_panic = lines().skip_while(|line| !line.contains(" panicked at ")).nth(1);
        let reason = late
            .or_else(|| lines().find(|line| line.starts_with("FAIL ")))
            .or_else(|| lines().find_map(error))
            .or(after_panic)
            .or_else(|| lines().rfind(|line| !line.is_empty()))
            .unwrap_or("no output");
        Self { kind: if late.is_some() { Kind::Late } else { Kind::Wrong }, reason: reason.to_owned() }
    }
}

/// The error that a test returned, which libtest prints behind the test's name if that is still there.
fn error(line: &str) -> Option<&str> {
    if line.starts_with("Error: ") {
        return Some(line);
    }
    line.strip_prefix("test ")?
        .split_once(" ... ")
        .map(|(_, rest)| rest)
        .filter(|rest| rest.starts_with("Error: "))
}

/// Whether a line begins what a test says of its failure: the error it returned, a panic, or the line
/// of a case.
fn is_verdict(line: &str) -> bool {
    error(line).is_some() || line.contains(" panicked at ") || line.starts_with("FAIL ")
}

/// Whether a line has an error of this kind: alone, or behind what it came of.
fn is_late(line: &str) -> bool {
    line.match_indices(LATE).any(|(place, _)| {
        let before = line[..place].trim_end();
        before.is_empty() || before.ends_with(':')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBTEST: &str = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out";

    fn kind(output: &str) -> Kind {
        match Verdict::read(false, output) {
            Verdict::Failed(failure) => failure.kind,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pass_needs_both_the_status_and_the_closing_line() {
        let passed = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out";
        assert_eq!(Verdict::read(true, passed), Verdict::Passed);
        assert_eq!(Verdict::read(true, "1 passed, 0 failed, 0 skipped"), Verdict::Passed);
        assert_eq!(kind(passed), Kind::Wrong);
        assert!(matches!(Verdict::read(true, ""), Verdict::Failed(_)));
        assert!(matches!(Verdict::read(true, "0 passed, 0 failed, 0 skipped"), Verdict::Failed(_)));
    }

    #[test]
    fn a_test_says_why_it_does_not_run() {
        let skipped = |text: &str| Verdict::Skipped(text.into());
        let by_itself = "skipped test xdp::a_bond: no such devices\n1 passed, 0 failed, 0 skipped";
        assert_eq!(Verdict::read(true, by_itself), skipped("no such devices"));
        let case = "skip updates/x (0 ms): needs manifests\n0 passed, 0 failed, 1 skipped";
        assert_eq!(Verdict::read(false, case), skipped("needs manifests"));
        let ignored = "test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured";
        assert_eq!(Verdict::read(true, ignored), skipped("ignored"));
    }

    #[test]
    fn only_what_says_so_is_late() {
        for late in [
            "Error: late: no sync in 60 s",
            "Error: step 2\n\nCaused by:\n    late: no answer in 10 s",
            "Error: step 2\n\nCaused by:\n    0: dial\n    1: late: no answer in 10 s",
            "thread 'a' panicked at a.rs:1:2:\ncalled `Result::unwrap()` on an `Err` value: late: no answer",
            "test a ... Error: late: no answer",
            "FAIL updates/x (12 ms): step 1: late: no answer",
        ] {
            assert_eq!(kind(&format!("{late}\n{LIBTEST}")), Kind::Late, "{late}");
        }
        for wrong in [
            "Error: reset by the peer",
            "Error: too late: yes",
            "late: printed by the test\nError: reset by the peer",
            "late: printed by the test",
            "lossless test load::x\nError: late: no answer in 10 s",
            "",
        ] {
            assert_eq!(kind(&format!("{wrong}\n{LIBTEST}")), Kind::Wrong, "{wrong}");
        }
    }

    #[test]
    fn the_reason_is_one_line() {
        let reason = |output: &str| match Verdict::read(false, output) {
            Verdict::Failed(failure) => failure.reason,
            other => panic!("{other:?}"),
        };
        let panic = "thread 'a' (7) panicked at tests/a.rs:1:2:\nassertion failed: x\nnote: run with";
        assert_eq!(reason(&format!("{panic}\n{LIBTEST}")), "assertion failed: x");
        assert_eq!(reason("running 1 test\nError: no\n\nCaused by:\n    why"), "Error: no");
        assert_eq!(reason("test a::b ... Error: no\n\nCaused by:"), "Error: no");
        assert_eq!(reason(""), "no output");
    }
}

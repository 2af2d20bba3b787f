//! What is printed: a line per case, the sums of every topic, and the whole sum.

use super::{Verdict, files::Named};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt,
    io::{Write, stdout},
    ops::AddAssign,
    time::Duration,
};

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON document at the end.
    Json,
}

/// Results so far.
#[derive(Debug)]
pub struct Report {
    format: Format,
    results: Vec<Value>,
    topics: BTreeMap<String, Sum>,
}

/// How many cases ended how, and the time they took.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Sum {
    passed: usize,
    failed: usize,
    skipped: usize,
    milliseconds: u64,
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.milliseconds += other.milliseconds;
    }
}

impl Report {
    /// Without results.
    pub fn new(format: Format) -> Self {
        Self { format, results: Vec::new(), topics: BTreeMap::new() }
    }

    /// Takes in a result, and prints it unless all are printed at the end.
    pub fn add(&mut self, named: &Named, verdict: &Verdict, took: Duration) {
        let name = format!("{}/{}", named.topic, named.case.name);
        let sum = self.topics.entry(named.topic.clone()).or_default();
        let milliseconds = took.as_millis() as u64;
        sum.milliseconds += milliseconds;
        let (count, word, detail) = match verdict {
            Verdict::Passed => (&mut sum.passed, "ok", None),
            Verdict::Failed(difference) => (&mut sum.failed, "FAIL", Some(difference.as_str())),
            Verdict::Skipped(reason) => (&mut sum.skipped, "skip", Some(*reason)),
        };
        *count += 1;
        if self.format == Format::Json {
            self.results
                .push(json!({"case": name, "result": word, "detail": detail, "milliseconds": milliseconds}));
            return;
        }
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        line(format_args!("{word:4} {name} ({milliseconds} ms){detail}"));
    }

    /// Prints the sums under a title; true when nothing failed and something was run.
    pub fn finish(self, title: &str) -> bool {
        let mut sum = Sum::default();
        self.topics.values().for_each(|topic| sum += *topic);
        if self.format == Format::Json {
            let document =
                json!({"title": title, "results": self.results, "topics": self.topics, "sum": sum});
            line(format_args!("{document}"));
        } else {
            line(format_args!(
                "\n{title:<34} {:>6} {:>6} {:>7} {:>9}",
                "passed", "failed", "skipped", "time"
            ));
            for (name, Sum { passed, failed, skipped, milliseconds }) in &self.topics {
                let time = format!("{:.1} s", *milliseconds as f64 / 1000.0);
                line(format_args!("{name:<34} {passed:>6} {failed:>6} {skipped:>7} {time:>9}"));
            }
            line(format_args!("{} passed, {} failed, {} skipped", sum.passed, sum.failed, sum.skipped));
        }
        sum.failed == 0 && sum.passed > 0
    }
}

/// A reader that has gone away ends the printing, not the run.
fn line(text: fmt::Arguments) {
    let mut output = stdout().lock();
    let _ = writeln!(output, "{text}").and_then(|()| output.flush());
}

//! What is printed: a line per case, and the sum.

use super::{Verdict, files::Named};
use serde_json::{Value, json};
use std::{
    fmt,
    io::{Write, stdout},
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
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Report {
    /// Without results.
    pub fn new(format: Format) -> Self {
        Self { format, results: Vec::new(), passed: 0, failed: 0, skipped: 0 }
    }

    /// Takes in a result, and prints it unless all are printed at the end.
    pub fn add(&mut self, named: &Named, verdict: &Verdict, took: Duration) {
        let name = format!("{}/{}", named.topic, named.case.name);
        let (count, word, detail) = match verdict {
            Verdict::Passed => (&mut self.passed, "ok", None),
            Verdict::Failed(difference) => (&mut self.failed, "FAIL", Some(difference.as_str())),
            Verdict::Skipped(reason) => (&mut self.skipped, "skip", Some(*reason)),
        };
        *count += 1;
        if self.format == Format::Json {
            let milliseconds = took.as_millis() as u64;
            self.results
                .push(json!({"case": name, "result": word, "detail": detail, "milliseconds": milliseconds}));
            return;
        }
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        line(format_args!("{word:4} {name} ({} ms){detail}", took.as_millis()));
    }

    /// Prints the sum; true when nothing failed and something was run.
    pub fn finish(self) -> bool {
        if self.format == Format::Json {
            let sum = json!({"passed": self.passed, "failed": self.failed, "skipped": self.skipped});
            line(format_args!("{}", json!({"results": self.results, "sum": sum})));
        } else {
            line(format_args!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped));
        }
        self.failed == 0 && self.passed > 0
    }
}

/// A reader that has gone away ends the printing, not the run.
fn line(text: fmt::Arguments) {
    let mut output = stdout().lock();
    let _ = writeln!(output, "{text}").and_then(|()| output.flush());
}

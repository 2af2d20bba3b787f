//! The log of a process, one JSON document per line, read as it is written.

use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// So many lines of the end tell what happened.
const TAIL: usize = 40;

/// A line of the log.
#[derive(Clone, Debug)]
pub struct Line {
    text: String,
    level: String,
    fields: Value,
}

impl Line {
    /// A line that is no document has the whole text as its message.
    fn parse(text: String) -> Self {
        let mut document: Value = serde_json::from_str(&text).unwrap_or_default();
        let level = document["level"].as_str().unwrap_or_default().to_owned();
        Self { level, fields: document["fields"].take(), text }
    }

    /// What it says.
    pub fn message(&self) -> &str {
        self.fields["message"].as_str().unwrap_or(&self.text)
    }

    /// `ERROR`, `WARN`, `INFO`, `DEBUG`; empty if it is no document.
    pub fn level(&self) -> &str {
        &self.level
    }

    /// One of its fields.
    pub fn field(&self, name: &str) -> &Value {
        &self.fields[name]
    }

    /// All of it.
    pub fn text(&self) -> &str {
        &self.text
    }
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<Line>,
    ended: bool,
}

/// All lines so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<(Mutex<State>, Condvar)>);

impl Log {
    /// Reads to the end on a thread of its own.
    pub(super) fn follow(source: impl Read + Send + 'static) -> Self {
        let log = Self::default();
        let writer = log.clone();
        thread::spawn(move || {
            for line in BufReader::new(source).lines().map_while(Result::ok) {
                writer.state().lines.push(Line::parse(line));
                writer.0.1.notify_all();
            }
            writer.state().ended = true;
            writer.0.1.notify_all();
        });
        log
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a wanted line is there or comes before the limit and the end of the log.
    pub(super) fn wait_for(&self, limit: Duration, wanted: impl Fn(&Line) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        let mut seen = 0;
        let mut state = self.state();
        loop {
            let new = state.lines.get(seen..).unwrap_or_default();
            if new.iter().any(&wanted) {
                return true;
            }
            seen = state.lines.len();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.ended {
                return false;
            }
            state = self.0.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether no more lines can come, for the process has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// All lines so far.
    pub(super) fn lines(&self) -> Vec<Line> {
        self.state().lines.clone()
    }

    /// The last lines.
    pub(super) fn tail(&self) -> String {
        let state = self.state();
        let start = state.lines.len().saturating_sub(TAIL);
        state.lines[start..].iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n")
    }
}

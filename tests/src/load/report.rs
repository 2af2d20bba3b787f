//! What a load has counted, per flow and per window of time.

use super::{Counts, Kind};
use anyhow::{Result, ensure};
use std::{fmt, time::Duration};

/// The result of a load.
#[derive(Clone, Debug)]
pub struct Report {
    /// One per flow.
    pub lines: Vec<Line>,
    /// Names of the windows and when each ended, since the load began.
    pub windows: Vec<(String, Duration)>,
    /// Packets that queues of this machine had no room for: a loss that no proxy caused.
    pub queues_dropped: u64,
}

/// One kind of traffic on one path.
#[derive(Clone, Debug)]
pub struct Line {
    /// Client, destination, protocol.
    pub path: String,
    /// Kind.
    pub kind: Kind,
    /// Counts of each window.
    pub windows: Vec<Counts>,
    /// Counts from beginning to end.
    pub total: Counts,
}

impl Line {
    /// From the counts at the end of each window.
    pub(super) fn new<'a>(path: &str, kind: Kind, ends: impl Iterator<Item = &'a Counts>) -> Self {
        let mut total = Counts::default();
        let mut windows = Vec::new();
        for end in ends {
            windows.push(end.since(&total));
            total = end.clone();
        }
        Self { path: path.into(), kind, windows, total }
    }
}

impl Report {
    /// All flows together.
    pub fn total(&self) -> Counts {
        self.sum(|line| &line.total)
    }

    /// All flows of one kind together.
    pub fn of(&self, kind: Kind) -> Counts {
        let mut sum = Counts::default();
        self.lines.iter().filter(|line| line.kind == kind).for_each(|line| sum.add(&line.total));
        sum
    }

    /// An error with the whole report unless every attempt ended well, no segment was lost, and
    /// every flow made some attempt in every window.
    pub fn ensure_lossless(&self) -> Result<()> {
        let is_clean =
            |line: &Line| line.total.is_lossless() && line.windows.iter().all(|window| window.ok > 0);
        ensure!(self.lines.iter().all(is_clean), "something was lost:\n{self}");
        Ok(())
    }

    fn sum<'a>(&'a self, counts: impl Fn(&'a Line) -> &'a Counts) -> Counts {
        let mut sum = Counts::default();
        self.lines.iter().for_each(|line| sum.add(counts(line)));
        sum
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{:<12} {:<42} {}", line.kind, line.path, line.total)?;
            for told in &line.total.told {
                writeln!(f, "             {told}")?;
            }
        }
        for (place, (name, end)) in self.windows.iter().enumerate() {
            let mut sum = self.sum(|line| &line.windows[place]);
            sum.told.clear();
            writeln!(f, "until {:>7.3} s {name}: {sum}", end.as_secs_f64())?;
            let idle = self.lines.iter().filter(|line| line.windows[place].ok == 0);
            for line in idle {
                writeln!(f, "             without a success: {} {}", line.kind, line.path)?;
            }
        }
        write!(f, "this machine's queues dropped {} packets", self.queues_dropped)
    }
}

//! What is kept of a measurement, and how it is printed.

use std::{collections::BTreeSet, fmt, fs, io::ErrorKind, path::Path as File};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::bench::{contender::Contender, ends::Workload, field::Missing, machine::Machine, target::Path};

/// The file of results.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Traffic {
    /// Where the last of it was measured.
    pub machine: Machine,
    /// One for each number of Services, in ascending order.
    pub runs: Vec<Run>,
}

/// What was measured at one number of Services.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Run {
    /// Other Services.
    pub services: u32,
    /// Measurements behind each median.
    pub rounds: usize,
    /// Length of a measurement.
    pub seconds: f64,
    /// One for each contender, path and workload.
    pub cells: Vec<Cell>,
    /// Who did not come to be measured.
    pub missing: Vec<Missing>,
}

/// A contender on a path. A unit is a request, or a MiB of a stream.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Cell {
    /// From where to where.
    pub path: Path,
    /// What.
    pub workload: Workload,
    /// By whom.
    pub contender: Contender,
    /// CPU time of a unit: both ends, and the kernel between them.
    pub micros: f64,
    /// Units per second of one CPU.
    pub rate: f64,
    /// Median time to connect, or of a request where nothing connects.
    pub p50_micros: f64,
    /// The 99th percentile of the same.
    pub p99_micros: f64,
    /// CPU time over that of `direct`, the median over rounds.
    pub to_direct: f64,
    /// Its lower quartile.
    pub low: f64,
    /// Its upper quartile.
    pub high: f64,
    /// CPU time over that of the better of kube-proxy's modes.
    pub to_kube_proxy: Option<f64>,
    /// Requests without an answer; their measurements are left out.
    pub failed: u64,
}

impl Traffic {
    /// The file's content; none if there is no file.
    pub fn read(path: &File) -> Result<Option<Self>> {
        match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            text => {
                let text = text.with_context(|| format!("read {}", path.display()))?;
                let results = serde_json::from_slice(&text);
                results.map(Some).with_context(|| format!("{} is none of ours", path.display()))
            }
        }
    }

    /// Replaces the file.
    pub fn write(&self, path: &File) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }

    /// Takes a run in. Of an earlier one at as many Services other paths and workloads stay: ratios
    /// are of one run within each.
    pub fn put(&mut self, mut run: Run) {
        let of = |cell: &Cell| (cell.path, cell.workload);
        let new: BTreeSet<_> = run.cells.iter().map(of).collect();
        if let Some(place) = self.runs.iter().position(|old| old.services == run.services) {
            let old = self.runs.remove(place);
            run.cells.extend(old.cells.into_iter().filter(|cell| !new.contains(&of(cell))));
            let is_new =
                |missing: &Missing| run.missing.iter().all(|other| other.contender != missing.contender);
            let missing: Vec<_> = old.missing.into_iter().filter(is_new).collect();
            run.missing.extend(missing);
        }
        run.cells.sort_by_key(|cell| (cell.workload, cell.path, cell.contender));
        self.runs.push(run);
        self.runs.sort_by_key(|run| run.services);
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for cell in &self.cells {
            writeln!(
                f,
                "{:6} {:11} {:14} {:14} {:9.2} us {:5.2}x direct ({:.2}..{:.2}) p50 {:7.1} us p99 {:7.1} us {} failed",
                self.services,
                cell.workload.name(),
                cell.path.name(),
                cell.contender.name(),
                cell.micros,
                cell.to_direct,
                cell.low,
                cell.high,
                cell.p50_micros,
                cell.p99_micros,
                cell.failed,
            )?;
        }
        Ok(())
    }
}

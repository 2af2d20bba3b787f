//! The page of traffic.

use std::collections::BTreeSet;

use super::{grouped, head, is_measured, row};
use crate::bench::{
    contender::Contender,
    ends::Workload,
    target::Path,
    traffic::{Cell, Run, Traffic},
};

/// All tables.
pub(super) fn page(traffic: &Traffic) -> String {
    let mut text = format!(
        "# Traffic\n\n{}\n\nHow it was measured, and what the columns mean: [method](method.md).\n\n\
         ![CPU time of a connection](traffic.svg)\n\n",
        traffic.machine.describe()
    );
    for run in &traffic.runs {
        let services = grouped(run.services);
        text += &format!("At {services} Services: {} rounds of {} s.\n", run.rounds, run.seconds);
        for missing in &run.missing {
            text += &format!("Not measured there: {}, for {}.\n", missing.contender.name(), missing.why);
        }
        text += "\n";
    }
    for workload in distinct(traffic, |cell| cell.workload) {
        text += &section(traffic, workload);
    }
    text
}

fn section(traffic: &Traffic, workload: Workload) -> String {
    let unit = if workload == Workload::TcpStream { "MiB" } else { "request" };
    let ratio = |cell: &Cell| format!("{:.2} ({:.2}…{:.2})", cell.to_direct, cell.low, cell.high);
    let micros = |cell: &Cell| format!("{:.1}", cell.micros);
    let mut text = format!("## {}\n\n", workload.name());
    text += "CPU time over that of `direct`: median (quartiles).\n\n";
    text += &table(traffic, workload, ratio);
    text += &format!("\nCPU time in µs for each {unit}; 1,000,000 over it is the rate of one CPU.\n\n");
    text += &table(traffic, workload, micros);
    if workload != Workload::TcpStream {
        let what = if workload == Workload::TcpConnect { "Time to connect" } else { "Time of a request" };
        text += &format!("\n{what} in µs: median / 99th percentile.\n\n");
        text += &table(traffic, workload, |cell| format!("{:.0} / {:.0}", cell.p50_micros, cell.p99_micros));
    }
    text + "\n"
}

/// A row for each path and number of Services, a column for each contender.
fn table(traffic: &Traffic, workload: Workload, show: impl Fn(&Cell) -> String) -> String {
    let contenders = distinct(traffic, |cell| cell.contender);
    let mut names = vec!["path".to_owned(), "Services".to_owned()];
    names.extend(contenders.iter().map(|contender| contender.name()));
    let mut text = head(&names);
    for path in distinct(traffic, |cell| cell.path) {
        for run in &traffic.runs {
            let cells: Vec<_> =
                contenders.iter().map(|contender| find(run, path, workload, *contender)).collect();
            if cells.iter().all(Option::is_none) {
                continue;
            }
            let shown = cells.into_iter().map(|cell| match cell {
                None => String::new(),
                Some(cell) if !is_measured(cell) => "failed".into(),
                Some(cell) if cell.failed > 0 => format!("{}, {} failed", show(cell), cell.failed),
                Some(cell) => show(cell),
            });
            text += &row([path.name(), grouped(run.services)].into_iter().chain(shown));
        }
    }
    text
}

/// What was measured of one contender.
pub(super) fn find(run: &Run, path: Path, workload: Workload, contender: Contender) -> Option<&Cell> {
    run.cells.iter().find(|cell| (cell.path, cell.workload, cell.contender) == (path, workload, contender))
}

fn distinct<T: Ord>(traffic: &Traffic, of: impl Fn(&Cell) -> T) -> BTreeSet<T> {
    traffic.runs.iter().flat_map(|run| &run.cells).map(of).collect()
}

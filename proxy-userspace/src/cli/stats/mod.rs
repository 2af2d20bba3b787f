//! `shunt stats`: what went by the services and to their backends, as `ipvsadm` shows it.

mod line;
pub mod view;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use self::{
    line::{CONNECTIONS, HEAD, Line, RATES, TOTALS},
    view::{FaceView, Sample},
};
use super::{
    BpffsArg,
    list::{
        column::{self, Column},
        filter::Where,
        service::FrontendKind,
    },
    output::{self, Output},
    rows::Tables,
};

pub(super) const EXAMPLES: &str = "Examples:
  shunt stats
  shunt stats --rate --sort cps --reverse
  shunt stats --rate --interval 10 --service shop/web
  shunt stats --connections --exact
  shunt stats -o json | jq '.services[] | {service, kind, opened}'";

/// `shunt stats`
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Connections, packets and bytes per second, over an interval that begins now.
    #[arg(long, conflicts_with = "connections")]
    pub rate: bool,
    /// Length of the interval in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// Open connections, and the share of new ones that each backend gets.
    #[arg(long)]
    pub connections: bool,
    /// All digits, where others would be rounded to K, M and G.
    #[arg(long)]
    pub exact: bool,
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
    /// Sort services by this column.
    #[arg(long, value_name = "COLUMN", value_parser = sort_keys())]
    pub sort: Option<String>,
    /// The last services first.
    #[arg(long)]
    pub reverse: bool,
    /// Leave the names of the columns out.
    #[arg(long)]
    pub no_headers: bool,
    /// Where the maps are.
    #[command(flatten)]
    pub bpffs: BpffsArg,
    /// Which services.
    #[command(flatten)]
    pub at: Where,
    /// Only addresses of this kind.
    #[arg(long, ignore_case = true, help_heading = "Filters")]
    pub kind: Option<FrontendKind>,
}

fn sort_keys() -> clap::builder::PossibleValuesParser {
    column::sort_keys(&[HEAD, TOTALS, RATES, CONNECTIONS].concat())
}

/// A number of seconds to wait.
pub(super) fn interval(text: &str) -> Result<f64, String> {
    let wrong = || "must be a number of seconds from 0.1 to 3600".to_owned();
    text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds)).ok_or_else(wrong)
}

/// What is printed for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// Seconds in which was counted; none for totals.
    #[serde(skip_serializing_if = "Option::is_none")]
    interval_seconds: Option<f64>,
    /// The agent wrote while the maps were read: rows may not fit together.
    changed_while_reading: bool,
    services: Vec<FaceView>,
}

/// Prints what was counted.
pub fn run(args: &StatsArgs) -> Result<ExitCode> {
    let columns = columns(args)?;
    let mut report = count(args)?;
    report.services.retain(|face| {
        args.at.admits(&face.facets()) && args.kind.is_none_or(|kind| face.kind == kind.name())
    });
    sort(args, &columns, &mut report.services);
    output::print(&match args.output {
        Output::Json => output::json(&report)?,
        Output::Yaml => output::yaml(&report)?,
        Output::Table | Output::Wide => table(args, &columns, &report.services),
    })
}

fn columns(args: &StatsArgs) -> Result<Vec<Column<Line>>> {
    let own = match (args.rate, args.connections) {
        (true, _) => RATES,
        (_, true) => CONNECTIONS,
        _ => TOTALS,
    };
    let columns = [HEAD, own].concat();
    match &args.sort {
        Some(name) if !columns.iter().any(|column| column.name.eq_ignore_ascii_case(name)) => {
            bail!("there is no column {name} here; --rate and --connections have others")
        }
        _ => Ok(columns),
    }
}

fn count(args: &StatsArgs) -> Result<Report> {
    let tables = Tables::read(&args.bpffs.bpffs, args.at.numeric)?;
    let sample = Sample::of(&tables);
    if !args.rate {
        let changed_while_reading = tables.changed_while_reading;
        return Ok(Report { interval_seconds: None, changed_while_reading, services: sample.faces(&tables) });
    }
    let start = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(args.interval));
    let tables = Tables::read(&args.bpffs.bpffs, args.at.numeric)?;
    let seconds = start.elapsed().as_secs_f64();
    let mut services = Sample::of(&tables).since(&sample).faces(&tables);
    services.iter_mut().for_each(|face| face.set_rates(seconds));
    let changed_while_reading = tables.changed_while_reading;
    Ok(Report { interval_seconds: Some(seconds), changed_while_reading, services })
}

fn sort(args: &StatsArgs, columns: &[Column<Line>], services: &mut [FaceView]) {
    let named = |name: &String| columns.iter().find(|column| column.name.eq_ignore_ascii_case(name));
    if let Some(column) = args.sort.as_ref().and_then(named) {
        services.sort_by_cached_key(|face| (column.value)(&Line::of_face(face, true)));
    }
    if args.reverse {
        services.reverse();
    }
}

fn table(args: &StatsArgs, columns: &[Column<Line>], services: &[FaceView]) -> String {
    let mut lines = Vec::new();
    for face in services {
        lines.push(Line::of_face(face, args.exact));
        lines.extend(face.backends.iter().map(|backend| Line::of_backend(backend, args.exact)));
    }
    column::table(&lines, columns, args.output == Output::Wide, !args.no_headers)
}

#[cfg(test)]
mod tests;

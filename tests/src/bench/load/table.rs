//! Results in short: a row for each contender.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    FLOOD_NAMES, Reading, Runs, flood_cells,
    results::{Load, Span, Stretch},
};

/// Heads of the columns where ports are used again.
pub const STRETCH_NAMES: [&str; 10] = [
    "contender",
    "request",
    "minutes",
    "first minute",
    "last minute",
    "slowest minute",
    "whole",
    "answered",
    "failed",
    "dropped",
];

/// A row. Ratios are requests over those of `direct`.
pub fn stretch_cells(stretch: &Stretch) -> [String; 10] {
    let (minutes, whole) = (stretch.minutes(), stretch.whole());
    let ratio = |span: Option<&Span>| span.map_or("–".into(), |span| format!("{:.2}", span.to_direct));
    let slowest = minutes.iter().min_by(|a, b| a.to_direct.total_cmp(&b.to_direct));
    let cut_short = match whole.cut_short {
        0 => String::new(),
        samples => format!(", cut short: {samples}"),
    };
    [
        stretch.contender.name(),
        stretch.workload.name(),
        minutes.len().to_string(),
        ratio(minutes.first()),
        ratio(minutes.last()),
        ratio(slowest),
        ratio(Some(&whole)),
        whole.answered.to_string(),
        format!("{}{cut_short}", whole.failed),
        dropped(stretch.drops.as_ref()),
    ]
}

/// Heads of the columns where it is asked what time does to the cost.
pub const STEADY_NAMES: [&str; 12] = [
    "path",
    "contender",
    "request",
    "minutes",
    "first minute",
    "fifth minute",
    "last minute",
    "last over first",
    "CPUs of the proxy",
    "connections kept, first and last",
    "failed",
    "dropped",
];
/// The minute between the first and the last that is told.
const FIFTH: usize = 5;

/// A row. Ratios are CPU time of a request over that of `direct`.
pub fn steady_cells(stretch: &Stretch) -> [String; 12] {
    let costs: Vec<_> = stretch.minutes().iter().map(Span::cost).collect();
    let ratio = |cost: Option<f64>| cost.map_or("–".into(), |cost| format!("{cost:.2}"));
    let (first, last) = (costs.first().copied().flatten(), costs.last().copied().flatten());
    let cpus: Option<Vec<f64>> = stretch.readings.iter().map(|reading| reading.cpus).collect();
    let cpus = cpus.filter(|cpus| !cpus.is_empty());
    let kept = |reading: Option<&Reading>| reading.and_then(|reading| reading.connections);
    let kept = kept(stretch.readings.first()).zip(kept(stretch.readings.last()));
    [
        stretch.path.name(),
        stretch.contender.name(),
        stretch.workload.name(),
        costs.len().to_string(),
        ratio(first),
        ratio(costs.get(FIFTH - 1).copied().flatten()),
        ratio(last),
        ratio(first.zip(last).map(|(first, last)| last / first)),
        cpus.map_or("–".into(), |cpus| format!("{:.3}", cpus.iter().sum::<f64>() / cpus.len() as f64)),
        kept.map_or("–".into(), |(first, last)| format!("{first} and {last}")),
        stretch.whole().failed.to_string(),
        dropped(stretch.drops.as_ref()),
    ]
}

/// Heads of the columns that tell of programs.
pub const PROGRAM_NAMES: [&str; 7] = [
    "path",
    "contender",
    "request",
    "program",
    "runs of a request",
    "ns of a run, first and last minute",
    "ns of a request, first and last minute",
];

/// A row for each program, and one for all of them.
pub fn program_cells(stretch: &Stretch) -> Vec<[String; 7]> {
    let Some((first, last)) = stretch.readings.first().zip(stretch.readings.last()) else {
        return Vec::new();
    };
    let row = |program: &str, of: &dyn Fn(&Reading) -> Option<Runs>| {
        let all = [first, last].map(|reading| of(reading).map(|runs| (runs, reading.requests)));
        let both = |number: &dyn Fn(Runs, f64) -> String| {
            all.map(|one| one.map_or("–".into(), |(runs, requests)| number(runs, requests))).join(" and ")
        };
        [
            stretch.path.name(),
            stretch.contender.name(),
            stretch.workload.name(),
            program.to_owned(),
            all[1].map_or("–".into(), |(runs, requests)| format!("{:.2}", runs.count as f64 / requests)),
            both(&|runs, _| format!("{:.0}", runs.nanoseconds as f64 / runs.count as f64)),
            both(&|runs, requests| format!("{:.0}", runs.nanoseconds as f64 / requests)),
        ]
    };
    let names: BTreeSet<&String> = [first, last].iter().flat_map(|reading| reading.programs.keys()).collect();
    let mut rows: Vec<_> =
        names.iter().map(|name| row(name, &|reading| reading.programs.get(*name).copied())).collect();
    if rows.len() > 1 {
        rows.push(row("all", &|reading| reading.sum()));
    }
    rows
}

/// Reasons and how often each.
pub(super) fn dropped(drops: Option<&BTreeMap<String, u64>>) -> String {
    match drops {
        None => "–".into(),
        Some(drops) if drops.is_empty() => "0".into(),
        Some(drops) => {
            let counts: Vec<_> = drops.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            counts.join(", ")
        }
    }
}

/// The tables for a terminal.
pub fn text(load: &Load) -> String {
    let (single, steady) = load.by_section();
    let tables = [
        table(STRETCH_NAMES, single.iter().map(|stretch| stretch_cells(stretch))),
        table(STEADY_NAMES, steady.iter().map(|stretch| steady_cells(stretch))),
        table(PROGRAM_NAMES, load.stretches.iter().flat_map(program_cells)),
        table(FLOOD_NAMES, load.floods.iter().map(flood_cells)),
    ];
    let tables = tables.into_iter().flatten().collect::<Vec<_>>();
    let mut text = tables.join("\n");
    for missing in &load.missing {
        text += &format!("{}: not measured: {}\n", missing.contender.name(), missing.why);
    }
    text
}

/// None without rows.
fn table<const N: usize>(names: [&str; N], rows: impl Iterator<Item = [String; N]>) -> Option<String> {
    let rows: Vec<_> = [names.map(String::from)].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    (rows.len() > 1).then(|| rows.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        contender::Contender,
        load::results::{
            SAMPLES_PER_MINUTE,
            tests::{sample, stretch},
        },
        target::Path,
    };

    #[test]
    fn a_stretch_in_a_line() {
        let minute = |answered| vec![sample(answered, 10.0, Some(100.0)); SAMPLES_PER_MINUTE];
        let mut stretch = Stretch {
            samples: [minute(900), minute(500), minute(700)].concat(),
            drops: Some([("snat-ports-exhausted".to_owned(), 7)].into()),
            ..stretch(Contender::ShuntAll)
        };
        stretch.samples[SAMPLES_PER_MINUTE] = sample(0, 5.0, Some(100.0));
        let load = Load { stretches: vec![stretch], ..Load::default() };
        let text = text(&load);
        let words = words(&text, 1);
        assert_eq!(words[2..7], ["3", "0.90", "0.70", "0.45", "0.69"], "{text}");
        assert_eq!(words[7..], ["12100", "3, cut short: 1", "7 snat-ports-exhausted"], "{text}");
    }

    /// Cells of a line.
    fn words(text: &str, line: usize) -> Vec<&str> {
        let line = text.lines().nth(line).unwrap_or_default();
        line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect()
    }

    fn reading(connections: u64, programs: &[(&str, u64, u64)]) -> Reading {
        let runs = |(name, count, nanoseconds): &(&str, u64, u64)| {
            ((*name).to_owned(), Runs { count: *count, nanoseconds: *nanoseconds })
        };
        let programs = programs.iter().map(runs).collect();
        Reading { connections: Some(connections), cpus: Some(0.02), requests: 100.0, programs }
    }

    #[test]
    fn a_cost_is_told_by_minutes_and_by_programs() {
        let minute = |answered| vec![sample(answered, 10.0, Some(100.0)); SAMPLES_PER_MINUTE];
        let stretch = Stretch {
            path: Path::PodRemote,
            samples: [minute(800), minute(640)].concat(),
            readings: vec![
                reading(700, &[("shunt_in", 400, 40_000), ("shunt_out", 400, 20_000)]),
                reading(800, &[("shunt_in", 400, 60_000), ("shunt_out", 400, 20_000), ("shunt_xdp", 1, 9)]),
            ],
            ..stretch(Contender::ShuntOff)
        };
        let text = text(&Load { stretches: vec![stretch], ..Load::default() });
        let steady = words(&text, 1);
        assert_eq!(steady[3..8], ["2", "1.25", "–", "1.56", "1.25"], "{text}");
        assert_eq!(steady[8..], ["0.020", "700 and 800", "0", "–"], "{text}");
        assert_eq!(words(&text, 4)[3..], ["shunt_in", "4.00", "100 and 150", "400 and 600"], "{text}");
        assert_eq!(words(&text, 6)[3..], ["shunt_xdp", "0.01", "– and 9", "– and 0"], "{text}");
        assert_eq!(words(&text, 7)[3..], ["all", "8.01", "75 and 100", "600 and 800"], "{text}");
    }
}

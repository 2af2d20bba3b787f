//! Results in short: a row for each contender.

use std::collections::BTreeMap;

use super::{
    FLOOD_NAMES, flood_cells,
    results::{Load, Span, Stretch},
};

/// Heads of the columns.
pub const NAMES: [&str; 10] = [
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
pub fn cells(stretch: &Stretch) -> [String; 10] {
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
    let tables =
        [table(NAMES, load.ports.iter().map(cells)), table(FLOOD_NAMES, load.floods.iter().map(flood_cells))];
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
        ends::Workload,
        load::results::{SAMPLES_PER_MINUTE, tests::sample},
    };

    #[test]
    fn a_stretch_in_a_line() {
        let minute = |answered| vec![sample(answered, 10.0, Some(100.0)); SAMPLES_PER_MINUTE];
        let mut stretch = Stretch {
            contender: Contender::ShuntAll,
            workload: Workload::TcpConnect,
            samples: [minute(900), minute(500), minute(700)].concat(),
            drops: Some([("snat-ports-exhausted".to_owned(), 7)].into()),
        };
        stretch.samples[SAMPLES_PER_MINUTE] = sample(0, 5.0, Some(100.0));
        let load = Load { ports: vec![stretch], ..Load::default() };
        let text = text(&load);
        let line = text.lines().nth(1).unwrap_or_default();
        let words: Vec<_> = line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
        assert_eq!(words[2..7], ["3", "0.90", "0.70", "0.45", "0.69"], "{text}");
        assert_eq!(words[7..], ["12100", "3, cut short: 1", "7 snat-ports-exhausted"], "{text}");
    }
}

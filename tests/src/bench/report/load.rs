//! The page of load.

use std::collections::BTreeSet;

use super::{head, row};
use crate::bench::load::{self, Flood, Load, Span, Stretch};

/// All tables.
pub(super) fn page(load: &Load) -> String {
    let mut text =
        format!("# Load\n\n{}\n\nHow it was measured: [method](method.md#load).\n", load.machine.describe());
    let (single, steady) = load.by_section();
    if !single.is_empty() {
        text += &ports(&single);
    }
    if !steady.is_empty() {
        text += &over_time(&steady);
    }
    let programs: Vec<_> = load.stretches.iter().flat_map(load::program_cells).collect();
    if !programs.is_empty() {
        text += &table_of_programs(programs);
    }
    if !load.floods.is_empty() {
        text += &floods(&load.floods);
    }
    for missing in &load.missing {
        text += &format!("\nNot measured: {}, for {}.\n", missing.contender.name(), missing.why);
    }
    text
}

fn ports(stretches: &[&Stretch]) -> String {
    let mut text = "\n## Source ports\n\n\
                    Requests through a NodePort to one backend on another node, one after the other for minutes, over \
                    those of `direct` in the same time.\n\n"
        .to_owned();
    text += &head(&load::STRETCH_NAMES.map(String::from));
    text.extend(stretches.iter().map(|stretch| row(load::stretch_cells(stretch))));
    text += "\nBy minute: requests per second / over those of `direct` / median and 99th percentile of the time \
             to connect in µs, for `udp-flow` of the request.\n\n";
    text + &minutes(stretches)
}

fn over_time(stretches: &[&Stretch]) -> String {
    let mut text = "\n## Over time\n\n\
                    CPU time of a request over that of `direct` in the same time, one request after the other for minutes. \
                    What the columns mean: [method](method.md#over-time).\n\n"
        .to_owned();
    text += &head(&load::STEADY_NAMES.map(String::from));
    text.extend(stretches.iter().map(|stretch| row(load::steady_cells(stretch))));
    text
}

fn table_of_programs(rows: Vec<[String; 7]>) -> String {
    let mut text = "\n## Programs\n\n\
                    What the kernel counts of shunt's programs under that load, its own counting included: \
                    [method](method.md#programs).\n\n"
        .to_owned();
    text += &head(&load::PROGRAM_NAMES.map(String::from));
    text.extend(rows.into_iter().map(row));
    text
}

fn floods(floods: &[Flood]) -> String {
    let seconds: BTreeSet<_> = floods.iter().map(|flood| format!("{:.0}", flood.seconds)).collect();
    let seconds: Vec<_> = seconds.into_iter().collect();
    let mut text = format!(
        "\n## Floods\n\n\
         SYNs from forged addresses for {} s through a NodePort to ten backends on another node (`outside-remote`) and to \
         one (`outside-single`), beside established connections and new ones of honest clients. What the columns \
         mean: [method](method.md#floods).\n\n",
        seconds.join(" or ")
    );
    text += &head(&load::FLOOD_NAMES.map(String::from));
    text.extend(floods.iter().map(|flood| row(load::flood_cells(flood))));
    text
}

/// A row for each minute, a column for each contender.
fn minutes(stretches: &[&Stretch]) -> String {
    let name = |stretch: &&Stretch| format!("{} {}", stretch.contender.name(), stretch.workload.name());
    let names: Vec<_> = ["minute".to_owned()].into_iter().chain(stretches.iter().map(name)).collect();
    let columns: Vec<Vec<Span>> = stretches.iter().map(|stretch| stretch.minutes()).collect();
    let most = columns.iter().map(Vec::len).max().unwrap_or_default();
    let mut text = head(&names);
    for minute in 0..most {
        let cells = columns.iter().map(|column| column.get(minute).map(cell).unwrap_or_default());
        text += &row([(minute + 1).to_string()].into_iter().chain(cells));
    }
    text
}

fn cell(span: &Span) -> String {
    let Span { rate, to_direct, p50_micros, p99_micros, failed, .. } = span;
    let failed = if *failed > 0 { format!(", {failed} failed") } else { String::new() };
    format!("{rate:.0} / {to_direct:.2} / {p50_micros:.0} and {p99_micros:.0}{failed}")
}

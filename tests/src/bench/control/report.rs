//! Results as a table, and as a page of the book.

use super::results::{ColdStart, Results, Row, Samples, Stretch};
use std::fmt::Write as _;

/// A column: its heading, what it tells, and a row's cell.
struct Column {
    name: &'static str,
    help: &'static str,
    cell: fn(&Row) -> Option<String>,
}

const COLUMNS: &[Column] = &[
    Column {
        name: "lists, s",
        help: "until the API server had delivered all Services and EndpointSlices to a client that only counts \
               bytes, just before the start, in the encoding that the contender asks for (kube-proxy: protobuf, \
               shunt: JSON); their size",
        cell: |row| row.delivery.map(|d| format!("{:.2} ({:.0} MiB)", d.seconds, d.mib)),
    },
    Column {
        name: "cold start, s",
        help: "from the start of the process on a clean node until the target service answered a pod; behind the \
               slash, until the agent's log says that everything is written (kube-proxy does not say so)",
        cell: |row| {
            let start = row.cold_start?;
            let in_sync = start.in_sync_seconds.map(|seconds| format!(" / {seconds:.2}")).unwrap_or_default();
            Some(format!("{:.2}{in_sync}", start.served_seconds))
        },
    },
    Column {
        name: "beyond lists, s",
        help: "cold start, the later of the two, less the delivery of the lists",
        cell: |row| {
            let start = row.cold_start?;
            let last = start.in_sync_seconds.unwrap_or(0.0).max(start.served_seconds);
            Some(format!("{:.2}", last - row.delivery?.seconds))
        },
    },
    Column {
        name: "CPU, s",
        help: "processor time of the cold start, user and system, children (`nft`, `iptables-restore`) included",
        cell: |row| row.cold_start.map(|start| format!("{:.2}", start.cpu_seconds)),
    },
    Column {
        name: "RSS, MiB",
        help: "peak resident memory of the process in the cold start (VmHWM), + that of its children, looked at \
               every 50 ms; in brackets, how much of it is rows of eBPF maps, which the process has mapped",
        cell: |row| row.cold_start.as_ref().map(memory),
    },
    Column {
        name: "maps, MiB",
        help: "what the kernel has set aside for the eBPF maps that the process holds (`memlock`); rules of \
               netfilter are not counted anywhere",
        cell: |row| row.cold_start?.maps_mib.map(|maps| format!("{maps:.0}")),
    },
    Column {
        name: "create, ms",
        help: "from sending the write of the EndpointSlice of a new Service to the first answer a pod got from it: \
               p50 / p99 / max",
        cell: |row| samples(row.create),
    },
    Column {
        name: "endpoint change, ms",
        help: "from sending the write that moves a service from one backend to another to the first answer by the \
               other: p50 / p99 / max",
        cell: |row| samples(row.change),
    },
    Column {
        name: "idle, % of a core",
        help: "what the proxy used while nothing changed and the target was asked; requests' p50 / p99 in µs",
        cell: |row| row.idle.as_ref().map(stretch),
    },
    Column {
        name: "churn, % of a core",
        help: "the same under 20 changes of other services' endpoints per second, or as many as the API server \
               took (in brackets)",
        cell: |row| {
            let churn = row.churn.as_ref()?;
            Some(format!("{} ({:.1}/s)", stretch(&churn.stretch), churn.changes_per_second))
        },
    },
    Column {
        name: "restart, s",
        help: "from the start of the process on a node where it ran before: until its log says that everything is \
               written, and how many rows it wrote until then (shunt); until a change that was made while it was \
               away was in force; requests to the target that went unanswered",
        cell: |row| {
            let restart = row.restart?;
            let seconds =
                |seconds: Option<f64>| seconds.map_or("–".into(), |seconds| format!("{seconds:.2}"));
            let rows = restart.rows_written.map(|rows| format!(" ({rows} rows)")).unwrap_or_default();
            let synced = restart.in_sync_seconds.map(|s| format!("{s:.2}{rows} / ")).unwrap_or_default();
            let all = restart.answered + restart.lost;
            Some(format!("{synced}{}; {} of {all} lost", seconds(restart.follows_seconds), restart.lost))
        },
    },
];

fn memory(start: &ColdStart) -> String {
    let some = |mib: f64, text: String| if mib < 1.0 { String::new() } else { text };
    let children = some(start.children_rss_mib, format!(" + {:.0}", start.children_rss_mib));
    let mapped = some(start.mapped_mib, format!(" ({:.0} maps)", start.mapped_mib));
    format!("{:.0}{children}{mapped}", start.peak_rss_mib)
}

fn samples(samples: Option<Samples>) -> Option<String> {
    let of = samples?.since_sent;
    Some([of.p50_ms, of.p99_ms, of.max_ms].map(number).join(" / "))
}

fn stretch(of: &Stretch) -> String {
    let lost = if of.lost > 0 { format!(", {} lost", of.lost) } else { String::new() };
    format!("{:.1}; {:.0} / {:.0}{lost}", of.cpu_percent, of.p50_us, of.p99_us)
}

fn number(milliseconds: f64) -> String {
    if milliseconds < 100.0 { format!("{milliseconds:.1}") } else { format!("{milliseconds:.0}") }
}

/// The results for a terminal: one block for each number of services, measures down, contenders
/// across.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    for group in results.rows.chunk_by(|a, b| a.services == b.services) {
        let services = group.first().map_or(0, |row| row.services);
        let mut line = format!("{:<22}", format!("{services} services"));
        group.iter().for_each(|row| line += &format!(" {:<32}", row.contender));
        text += &format!("{}\n", line.trim_end());
        for column in COLUMNS {
            let mut line = format!("  {:<20}", column.name);
            group.iter().for_each(|row| line += &format!(" {:<32}", cell(column, row)));
            text += &format!("{}\n", line.trim_end());
        }
        for (row, note) in group.iter().flat_map(|row| row.notes.iter().map(move |note| (row, note))) {
            text += &format!("  {}: {note}\n", row.contender);
        }
        text.push('\n');
    }
    text
}

fn cell(column: &Column, row: &Row) -> String {
    (column.cell)(row).unwrap_or_else(|| "–".into())
}

/// The results as a page; `machine` says on what they were measured.
pub fn markdown(results: &Results, machine: &str) -> String {
    let mut text = format!(
        "# Changes\n\nHow long a change takes to be in force, and what a proxy costs, by the number of \
         services in the cluster, each with 10 endpoints. Real kube-apiserver, one node with the proxy, its \
         packet path (`socketLB: off`). [Method](method.md).\n\n{machine}\n\n"
    );
    let names: Vec<_> = COLUMNS.iter().map(|column| column.name).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "| services | | {} |", names.join(" | "));
    let _ = writeln!(text, "| ---: | --- | {} |", vec!["---"; names.len()].join(" | "));
    for row in &results.rows {
        let cells: Vec<_> = COLUMNS.iter().map(|column| cell(column, row)).collect();
        let _ = writeln!(text, "| {} | {} | {} |", row.services, row.contender, cells.join(" | "));
    }
    text += "\n– was not measured, or the contender does not say it.\n\n";
    for (row, note) in results.rows.iter().flat_map(|row| row.notes.iter().map(move |note| (row, note))) {
        let _ = writeln!(text, "- {} services, {}: {note}", row.services, row.contender);
    }
    text += "\n## Columns\n\n";
    for column in COLUMNS {
        let _ = writeln!(text, "- **{}**: {}", column.name, column.help);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{super::contender::Contender, *};

    #[test]
    fn what_was_not_measured_has_a_place() {
        let mut results = Results::default();
        let mut row = Row::new(10, Contender::Shunt);
        row.notes.push("not ready after 3 s".into());
        results.merge(row);
        let page = markdown(&results, "a machine");
        let line =
            page.lines().find(|line| line.starts_with("| 10 | shunt")).map(|line| line.matches('–').count());
        assert_eq!(line, Some(COLUMNS.len()));
        assert!(page.contains("- 10 services, shunt: not ready after 3 s"), "{page}");
        assert!(table(&results).contains("not ready after 3 s"));
    }
}

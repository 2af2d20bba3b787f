//! The results as a table for people and as JSON for programs.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::{
    bpf::Info,
    cases::Packets,
    measure::{FRESH, Row},
};

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    Json,
}

/// What another load balancer under XDP is known to take for a packet in all, in ns.
struct Published {
    tcp: u32,
    udp: u32,
    source: &'static str,
}

/// A test run of 2024-11-06, in a comment of the same day.
const KATRAN: Published = Published { tcp: 101, udp: 119, source: "facebookincubator/katran, issue 235" };

/// All results of one run.
pub(crate) struct Report {
    pub(crate) kernel: String,
    pub(crate) rounds: u32,
    pub(crate) rows: Vec<Row>,
    pub(crate) programs: BTreeMap<&'static str, Info>,
}

impl Report {
    pub(crate) fn print(&self, format: Format) -> Result<()> {
        match format {
            Format::Table => self.print_table(),
            Format::Json => println!("{}", serde_json::to_string_pretty(&self.json())?),
        }
        Ok(())
    }

    fn print_table(&self) {
        println!("kernel {}, medians of {} rounds\n", self.kernel, self.rounds);
        println!(
            "{:<6} {:<40} {:>7} {:>7} {:>7} {:>7} {:>7}",
            "hook", "packet", "ns", "no-op", "more", "least", "ratio"
        );
        for row in &self.rows {
            println!(
                "{:<6} {:<40} {:>7.0} {:>7.0} {:>7.0} {:>7.0} {:>7.1}",
                row.case.hook.name(),
                row.case.name(),
                row.nanoseconds,
                row.noop,
                row.over_noop,
                row.least,
                row.ratio
            );
        }
        println!(
            "\nmore: time beyond the no-op of the same round; least: in the best round\n\
             * each packet is another connection, so each runs once, and so does its no-op: the time then holds\n  \
             reading the clock and what a call leaves cold (median of {FRESH} in each round)\n\n\
             For comparison with the ns of xdp, whose no-op is part of them: Katran forwards packets to a TCP service\n\
             in {} ns and to a UDP service in {} ns, over IPv4, as its authors have published it ({}).\n\
             Their machine is another one, and their packets go inside others, with addresses and ports as they came.\n",
            KATRAN.tcp, KATRAN.udp, KATRAN.source
        );
        println!("{:<16} {:>10} {:>13} {:>14}", "program", "verified", "instructions", "machine code");
        for (name, info) in &self.programs {
            println!(
                "{name:<16} {:>10} {:>13} {:>12} B",
                info.verified, info.instructions, info.machine_code
            );
        }
    }

    fn json(&self) -> Value {
        let round = |value: f64| (value * 10.0).round() / 10.0;
        let row = |row: &Row| {
            json!({
                "hook": row.case.hook.name(),
                "family": row.case.family,
                "packet": row.case.what,
                "once": matches!(row.case.packets, Packets::New(_)),
                "nanoseconds": round(row.nanoseconds),
                "noop": round(row.noop),
                "overNoop": round(row.over_noop),
                "leastOverNoop": round(row.least),
                "ratio": (row.ratio * 100.0).round() / 100.0,
            })
        };
        let program = |(name, info): (&&str, &Info)| {
            let sizes = json!({
                "verifiedInstructions": info.verified,
                "instructions": info.instructions,
                "machineCodeBytes": info.machine_code,
            });
            ((*name).to_owned(), sizes)
        };
        json!({
            "kernel": self.kernel,
            "rounds": self.rounds,
            "packets": self.rows.iter().map(row).collect::<Vec<_>>(),
            "programs": self.programs.iter().map(program).collect::<serde_json::Map<_, _>>(),
        })
    }
}

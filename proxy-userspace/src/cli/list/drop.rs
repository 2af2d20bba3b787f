//! `shunt drop list`: what was refused, and why.

use std::path::Path;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::{
    ListArgs, Listed, Stored,
    column::{Column, Shown, Value},
};
use crate::kernel::{PinnedMaps, Pins};

/// `shunt drop`
#[derive(Debug, Subcommand)]
pub enum DropCommand {
    /// Show how many packets and connections were refused, by reason.
    ///
    /// Counted since the maps were made, over all CPUs.
    #[command(after_help = EXAMPLES)]
    List(ListArgs<DropView>),
}

const EXAMPLES: &str = "Examples:
  shunt drop list
  shunt drop list --sort count --reverse
  shunt drop list --all -o wide";

/// Which rows.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Filters")]
pub struct DropFilter {
    /// Reasons that never occurred, too.
    #[arg(long)]
    pub all: bool,
}

/// How often something was refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DropView {
    /// The reason, by its name in metrics.
    pub reason: &'static str,
    /// How often.
    pub count: u64,
    /// What the reason means.
    pub meaning: &'static str,
}

impl Listed for DropView {
    type Filter = DropFilter;

    const COLUMNS: &'static [Column<Self>] = &[
        Column { name: "REASON", shown: Shown::Always, value: |v| v.reason.into() },
        Column { name: "COUNT", shown: Shown::Always, value: |v| Value::Number(v.count) },
        Column { name: "MEANING", shown: Shown::Always, value: |v| v.meaning.into() },
    ];

    fn is_wanted(&self, filter: &DropFilter) -> bool {
        filter.all || self.count > 0
    }
}

impl Stored for DropView {
    fn read(bpffs: &Path, _filter: &DropFilter) -> Result<Vec<Self>> {
        let drops = PinnedMaps::open(Pins::new(bpffs))?.drops()?;
        Ok(drops
            .into_iter()
            .map(|(reason, count)| DropView { reason: reason.name(), count, meaning: reason.help() })
            .collect())
    }
}

//! The lists: what the pinned maps hold, with or without an agent. A list is a view of its
//! rows with a table of columns; reading, filters, sorting and formats are common to all.

pub mod affinity;
pub mod backend;
pub mod column;
pub mod conn;
pub mod device;
pub mod drop;
pub mod filter;
pub mod service;

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use self::column::Column;
use super::{
    BpffsArg,
    output::{self, Output},
};

/// A kind of row that there is a list of.
pub trait Listed: Serialize + Sized + 'static {
    /// The flags that choose among the rows.
    type Filter: Args + std::fmt::Debug;

    /// What is shown of a row.
    const COLUMNS: &'static [Column<Self>];

    /// Whether a row is wanted.
    fn is_wanted(&self, filter: &Self::Filter) -> bool;

    /// Rows that only say what others imply are left out of short tables.
    fn is_detail(&self) -> bool {
        false
    }
}

/// Rows that the pinned maps hold.
pub trait Stored: Listed {
    /// All rows, in the order in which they are shown.
    ///
    /// # Errors
    /// When the maps below `bpffs` cannot be read.
    fn read(bpffs: &Path, filter: &Self::Filter) -> Result<Vec<Self>>;
}

/// How a list is shown.
#[derive(Debug, Args)]
pub struct ShowArgs<V: Listed> {
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
    /// Sort by this column.
    #[arg(long, value_name = "COLUMN", value_parser = column::sort_keys(V::COLUMNS))]
    pub sort: Option<String>,
    /// The last rows first.
    #[arg(long)]
    pub reverse: bool,
    /// Leave the names of the columns out.
    #[arg(long)]
    pub no_headers: bool,
    /// Which rows.
    #[command(flatten)]
    pub filter: V::Filter,
}

/// Flags of all lists of what is.
#[derive(Debug, Args)]
pub struct ListArgs<V: Listed> {
    /// How to show it.
    #[command(flatten)]
    pub show: ShowArgs<V>,
    /// Where the maps are.
    #[command(flatten)]
    pub bpffs: BpffsArg,
}

/// Prints a list.
pub fn run<V: Stored>(args: &ListArgs<V>) -> Result<ExitCode> {
    output::print(&show(&args.show, V::read(&args.bpffs.bpffs, &args.show.filter)?)?)
}

/// The wanted ones of `rows` in the wanted form.
pub fn show<V: Listed>(args: &ShowArgs<V>, mut rows: Vec<V>) -> Result<String> {
    rows.retain(|row| row.is_wanted(&args.filter));
    if let Some(name) = &args.sort {
        column::sort(&mut rows, V::COLUMNS, name);
    }
    if args.reverse {
        rows.reverse();
    }
    match args.output {
        Output::Json => output::json(&rows),
        Output::Yaml => output::yaml(&rows),
        Output::Wide => Ok(column::table(&rows, V::COLUMNS, true, !args.no_headers)),
        Output::Table => {
            rows.retain(|row| !row.is_detail());
            Ok(column::table(&rows, V::COLUMNS, false, !args.no_headers))
        }
    }
}

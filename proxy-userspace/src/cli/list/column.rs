//! Columns: what a list shows of each row, described once for tables, sorting and help.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use clap::builder::PossibleValuesParser;
use comfy_table::{ContentArrangement, Table, presets};

/// A column of a list of `V`.
pub struct Column<V> {
    /// What stands above it, and, in lower case, what `--sort` takes.
    pub name: &'static str,
    /// Which tables have it.
    pub shown: Shown,
    /// What a row has in it.
    pub value: fn(&V) -> Value,
}

impl<V> Clone for Column<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Column<V> {}

/// Which tables have a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// All.
    Always,
    /// Only those that leave out nothing; another column may have its name in the others.
    Wide,
    /// Only those that are to be short.
    Narrow,
}

impl Shown {
    fn is_in(self, wide: bool) -> bool {
        match self {
            Shown::Always => true,
            Shown::Wide => wide,
            Shown::Narrow => !wide,
        }
    }
}

/// What stands in a cell, in a form that sorts as people expect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// There is none.
    None,
    /// Nothing is to be said.
    Blank,
    /// Counted things.
    Number(u64),
    /// A span of time in seconds.
    Seconds(u64),
    /// An address.
    Address(IpAddr),
    /// An address and a port.
    Socket(SocketAddr),
    /// Counted things, rounded to K, M, G, T where they are many.
    Rounded(u64),
    /// Tenths of something.
    Tenths(u64),
    /// Anything else.
    Text(String),
    /// Several, one below the other.
    Lines(Vec<String>),
}

impl Value {
    /// Text, or none where it is empty.
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.is_empty() { Value::None } else { Value::Text(text) }
    }

    /// A socket, or none.
    pub fn socket(socket: Option<SocketAddr>) -> Self {
        socket.map_or(Value::None, Value::Socket)
    }

    /// Words with commas between them.
    pub fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        Self::text(words.into_iter().collect::<Vec<_>>().join(","))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Value::Number(number)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Value::Number(number as u64)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => f.write_str("-"),
            Value::Blank => Ok(()),
            Value::Number(number) => number.fmt(f),
            Value::Rounded(number) => f.write_str(&rounded(*number)),
            Value::Tenths(tenths) => write!(f, "{}.{}", tenths / 10, tenths % 10),
            Value::Seconds(seconds) => f.write_str(&age(*seconds)),
            Value::Address(address) => address.fmt(f),
            Value::Socket(socket) => socket.fmt(f),
            Value::Text(text) => f.write_str(text),
            Value::Lines(lines) => f.write_str(&lines.join("\n")),
        }
    }
}

/// At most five digits, and the unit: powers of 1000, as ipvsadm has them.
fn rounded(number: u64) -> String {
    let units = ["", "K", "M", "G", "T", "P"];
    let mut shown = number;
    for unit in units {
        if shown < 100_000 {
            return format!("{shown}{unit}");
        }
        shown = shown / 1000 + u64::from(shown % 1000 >= 500);
    }
    format!("{shown}E")
}

/// The two largest units, as kubectl shows ages.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// What `--sort` takes: the names of the columns in lower case.
pub fn sort_keys<V>(columns: &[Column<V>]) -> PossibleValuesParser {
    let mut names: Vec<_> = columns.iter().map(|column| column.name.to_lowercase()).collect();
    names.dedup();
    PossibleValuesParser::new(names)
}

/// Sorts by the column with this name; rows that are equal there keep their order.
pub fn sort<V>(rows: &mut [V], columns: &[Column<V>], name: &str) {
    if let Some(column) = columns.iter().find(|column| column.name.eq_ignore_ascii_case(name)) {
        rows.sort_by_cached_key(column.value);
    }
}

/// The rows as a table for eyes and for `awk`.
pub fn table<V>(rows: &[V], columns: &[Column<V>], wide: bool, headers: bool) -> String {
    let shown: Vec<_> = columns.iter().filter(|column| column.shown.is_in(wide)).collect();
    let header = headers.then(|| shown.iter().map(|column| column.name.to_owned()).collect());
    let cells = rows.iter().map(|row| shown.iter().map(|column| (column.value)(row).to_string()).collect());
    plain(header, cells)
}

/// A table without lines.
pub fn plain(header: Option<Vec<String>>, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if let Some(header) = header {
        table.set_header(header);
    }
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        let shown = [0, 59, 60, 3599, 3600, 86_399, 90_061].map(age);
        assert_eq!(shown, ["0s", "59s", "1m0s", "59m59s", "1h0m", "23h59m", "1d1h"]);
    }

    #[test]
    fn numbers_are_rounded_where_they_are_many() {
        let shown = [0, 99_999, 100_000, 1_234_567, 99_999_499, 99_999_500, u64::MAX].map(rounded);
        assert_eq!(shown, ["0", "99999", "100K", "1235K", "99999K", "100M", "18447P"]);
        assert_eq!(Value::Tenths(1234).to_string(), "123.4");
    }

    const COLUMNS: &[Column<(u64, &str)>] = &[
        Column { name: "COUNT", shown: Shown::Always, value: |row| row.0.into() },
        Column { name: "ADDRESS", shown: Shown::Narrow, value: |row| row.1.into() },
        Column {
            name: "ADDRESS",
            shown: Shown::Wide,
            value: |row| row.1.parse().map_or(Value::None, Value::Address),
        },
    ];

    #[test]
    fn columns_are_sorted_by_what_they_mean() {
        let mut rows = [(10, "10.0.0.2"), (9, "x"), (100, "10.0.0.10")];
        sort(&mut rows, COLUMNS, "count");
        assert_eq!(
            table(&rows, COLUMNS, false, true),
            "COUNT  ADDRESS\n9      x\n10     10.0.0.2\n100    10.0.0.10"
        );
        sort(&mut rows, &COLUMNS[2..], "address");
        assert_eq!(table(&rows, COLUMNS, true, false), "9    -\n10   10.0.0.2\n100  10.0.0.10");
    }
}

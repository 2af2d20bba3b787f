//! `maps` of ShuntConfiguration: rows that maps begin with, and the memory that `conntrack` may take.

use std::{fmt, str::FromStr};

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::errors::Problems;
use crate::kernel::{self, Capacities};

/// Sizes of the eBPF maps. Numbers are rows to begin with, per family where there are two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the maps have these names")]
pub struct Maps {
    pub frontends: u32,
    pub backends: u32,
    pub slots: u32,
    pub conntrack: u32,
    /// A share of the machine's memory, or an amount: see [`MemoryLimit`].
    pub conntrack_memory: String,
    pub services: u32,
    pub affinity: u32,
    pub source_ranges: u32,
}

impl Default for Maps {
    fn default() -> Self {
        Self::of(Capacities::default(), MemoryLimit::default())
    }
}

impl Maps {
    /// What says this.
    pub fn of(rows: Capacities, conntrack_limit: MemoryLimit) -> Self {
        let Capacities { frontends, backends, slots, conntrack, services, affinity, source_ranges } = rows;
        let conntrack_memory = conntrack_limit.to_string();
        Self { frontends, backends, slots, conntrack, conntrack_memory, services, affinity, source_ranges }
    }

    /// Rows that maps begin with, as configured.
    pub(super) fn capacities(&self, problems: &mut Problems) -> Capacities {
        let &Self { frontends, backends, slots, conntrack, services, affinity, source_ranges, .. } = self;
        for (path, rows) in [
            ("maps.frontends", frontends),
            ("maps.backends", backends),
            ("maps.slots", slots),
            ("maps.conntrack", conntrack),
            ("maps.services", services),
            ("maps.affinity", affinity),
            ("maps.sourceRanges", source_ranges),
        ] {
            problems.check(rows > 0, path, "must be more than 0");
        }
        Capacities { frontends, backends, slots, conntrack, services, affinity, source_ranges }
    }

    /// How much `conntrack` may take.
    pub(super) fn conntrack_limit(&self, problems: &mut Problems) -> MemoryLimit {
        self.conntrack_memory.parse().unwrap_or_else(|error: MemoryLimitError| {
            problems.add("maps.conntrackMemory", error);
            MemoryLimit::default()
        })
    }
}

/// A limit to memory: `10%` of the machine's, or an amount such as `512Mi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// Percent, from 1 to 100.
    Share(u8),
    /// Bytes.
    Bytes(u64),
}

/// What is wrong with the text of a limit.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MemoryLimitError {
    /// Neither of the two.
    #[error("{0:?} is neither an amount of memory such as 512Mi nor a share of the machine's such as 10%")]
    Syntax(String),
    /// Not even a small table fits.
    #[error("{0:?} is too little: {rows} rows take {least}", rows = LEAST_ROWS, least = least())]
    TooLittle(String),
}

/// A table that is smaller is of no use.
const LEAST_ROWS: u32 = 1024;

fn least() -> ByteSize {
    ByteSize(kernel::full_conntrack_bytes(LEAST_ROWS))
}

impl Default for MemoryLimit {
    fn default() -> Self {
        Self::Share(10)
    }
}

impl FromStr for MemoryLimit {
    type Err = MemoryLimitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || MemoryLimitError::Syntax(text.to_owned());
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
            return percent.map(Self::Share).ok_or_else(wrong);
        }
        let ByteSize(bytes) = text.parse().map_err(|_| wrong())?;
        if bytes < least().0 {
            return Err(MemoryLimitError::TooLittle(text.to_owned()));
        }
        Ok(Self::Bytes(bytes))
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(percent) => write!(f, "{percent}%"),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

impl MemoryLimit {
    /// The most rows of `conntrack` for each family that a machine with so many bytes of memory may have.
    pub fn conntrack_rows(self, machine: u64) -> u32 {
        kernel::conntrack_rows_within(self.bytes(machine)).max(LEAST_ROWS)
    }

    /// Bytes, on a machine that has so many.
    pub fn bytes(self, machine: u64) -> u64 {
        match self {
            Self::Share(percent) => machine / 100 * u64::from(percent),
            Self::Bytes(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_shares() {
        let read = |text: &str| text.parse::<MemoryLimit>();
        assert_eq!(read("10%"), Ok(MemoryLimit::Share(10)));
        assert_eq!(read("512Mi"), Ok(MemoryLimit::Bytes(512 << 20)));
        assert_eq!(read("1Gi"), Ok(MemoryLimit::Bytes(1 << 30)));
        assert_eq!(read("1G"), Ok(MemoryLimit::Bytes(1_000_000_000)));
        assert_eq!(read("100000000"), Ok(MemoryLimit::Bytes(100_000_000)));
        for text in ["", "0%", "101%", "1.5%", "-1Mi", "much", "10 %", "5Qi"] {
            assert_eq!(read(text), Err(MemoryLimitError::Syntax(text.to_owned())), "{text}");
        }
        let little = read("100Ki").map_err(|error| error.to_string());
        assert!(little.as_ref().is_err_and(|error| error.contains("1024 rows take")), "{little:?}");
        assert_eq!(MemoryLimit::default().to_string().parse(), Ok(MemoryLimit::default()));
    }

    #[test]
    fn rows_that_a_limit_allows() {
        let machine = 2 << 30;
        assert_eq!(MemoryLimit::Share(10).bytes(machine), 214_748_360);
        assert!((400_000..450_000).contains(&MemoryLimit::Share(10).conntrack_rows(machine)));
        assert_eq!(MemoryLimit::Share(1).conntrack_rows(1 << 20), LEAST_ROWS, "however small the machine");
    }
}

//! Writes that fail on demand.

use std::io;

use crate::dataplane::{MapError, MapName};

/// Which write fails next, and how far it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Writes that succeed before.
    pub after: u32,
    /// Rows of the batch that are written nevertheless.
    pub rows: usize,
}

/// Counts writes and makes some fail.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Rows written or deleted so far.
    pub rows: u64,
    /// The next writes that fail, each counted from the one before.
    pub next: Vec<Fault>,
}

impl Faults {
    /// How many of `rows` are to be carried out, and whether to fail then.
    pub(super) fn admit(&mut self, map: MapName, rows: usize) -> (usize, Result<(), MapError>) {
        let Some(fault) = self.next.first_mut() else {
            self.rows += rows as u64;
            return (rows, Ok(()));
        };
        if fault.after > 0 {
            fault.after -= 1;
            self.rows += rows as u64;
            return (rows, Ok(()));
        }
        let done = self.next.remove(0).rows.min(rows);
        self.rows += done as u64;
        let source = io::Error::from(io::ErrorKind::Interrupted);
        (done, Err(MapError::Retryable { map, what: format!("write {rows} rows"), source }))
    }
}

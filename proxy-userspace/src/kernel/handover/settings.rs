//! The row of `settings` of another generation, whose layout is known by the names of its fields.

use proxy_common::maps::settings::flags::HANDOVER;

use super::ports::Range;
use crate::kernel::{
    KernelError,
    bpf::ANY,
    carry::{Table, carry_error},
    pins::Pins,
};

const MAP: &str = "settings";
const FIRST: &str = "snat_port_first";
const COUNT: &str = "snat_port_count";
const FLAGS: &str = "flags";

/// A copy of the row.
pub(super) struct Theirs {
    table: Table,
    row: Vec<u8>,
}

impl Theirs {
    /// Nothing if there is no such map or row.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn read(pins: &Pins) -> Result<Option<Self>, KernelError> {
        let Some(table) = Table::open(pins, MAP)? else { return Ok(None) };
        let row = table.map.get(&Self::key(&table)).map_err(|error| carry_error(MAP, error))?;
        Ok(row.map(|row| Self { table, row }))
    }

    /// # Errors
    /// When the kernel refuses the row.
    pub(super) fn write(&self) -> Result<(), KernelError> {
        let written = self.table.map.put(&Self::key(&self.table), &self.row, ANY);
        written.map_err(|error| carry_error(MAP, error))
    }

    /// Source ports for masquerading.
    pub(super) fn ports(&self) -> Option<Range> {
        let number =
            |name| self.table.value.number(&self.row, name).and_then(|number| number.try_into().ok());
        Some(Range { first: number(FIRST)?, count: number(COUNT)? })
    }

    pub(super) fn set_ports(&mut self, range: Range) {
        self.set(FIRST, range.first.into());
        self.set(COUNT, range.count.into());
    }

    pub(super) fn set_handover(&mut self, is_on: bool) {
        let flags = self.table.value.number(&self.row, FLAGS).unwrap_or_default();
        let bit = u64::from(HANDOVER);
        self.set(FLAGS, if is_on { flags | bit } else { flags & !bit });
    }

    fn set(&mut self, name: &str, number: u64) {
        self.table.value.set_number(&mut self.row, name, number);
    }

    /// The only one there is.
    fn key(table: &Table) -> Vec<u8> {
        vec![0; table.map.key_size()]
    }
}

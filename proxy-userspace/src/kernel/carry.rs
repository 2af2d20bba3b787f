//! One map in two generations: its rows are read in the layout there and written in the one here.

use std::{collections::HashMap, io};

use btf_rs::Btf;

use super::{
    bpf::{ANY, RawMap},
    error::KernelError,
    fields,
    layout::{Layout, LayoutError, Translation},
    pins::Pins,
};

/// A map and the fields of its rows.
pub(super) struct Table {
    pub(super) map: RawMap,
    pub(super) key: Layout,
    pub(super) value: Layout,
}

impl Table {
    /// Opens the map called `name`; nothing if the generation has none.
    ///
    /// # Errors
    /// When it cannot be opened or does not tell its fields.
    pub(super) fn open(pins: &Pins, name: &'static str) -> Result<Option<Self>, KernelError> {
        let map = RawMap::open_if_there(&pins.map(name)).map_err(|error| carry_error(name, error))?;
        let Some(map) = map else { return Ok(None) };
        let noted = std::fs::read_link(pins.fields(name)).ok();
        let noted = noted.and_then(|text| fields::parse(text.to_str()?, map.key_size(), map.value_size()));
        let described = noted.map_or_else(|| Self::describe(&map), Ok);
        let described = described.map_err(|error| carry_error(name, error))?;
        Ok(Some(Self { key: described.0, value: described.1, map }))
    }

    /// Asks the kernel, for want of a note.
    fn describe(map: &RawMap) -> Result<(Layout, Layout), Box<dyn std::error::Error + Send + Sync>> {
        let (id, key, value) = map.btf();
        if id == 0 {
            return Err(LayoutError::Untyped.into());
        }
        let btf = Btf::from_bytes(&map.btf_bytes()?).map_err(LayoutError::from)?;
        Ok((Layout::of(&btf, key, map.key_size())?, Layout::of(&btf, value, map.value_size())?))
    }
}

/// A map of two generations.
pub(super) struct Carrier {
    pub(super) name: &'static str,
    pub(super) from: Table,
    pub(super) to: Table,
    key: Translation,
    value: Translation,
}

/// A row on its way.
pub(super) struct Row<'a> {
    /// The key there.
    pub(super) there: &'a [u8],
    /// The key here.
    pub(super) key: Vec<u8>,
    /// The value here.
    pub(super) value: Vec<u8>,
}

/// Rows in the layout here.
pub(super) type Rows = HashMap<Vec<u8>, Vec<u8>>;

impl Carrier {
    /// The map called `name`; nothing unless both generations have it.
    ///
    /// # Errors
    /// When it cannot be opened or does not tell its fields.
    pub(super) fn open(from: &Pins, to: &Pins, name: &'static str) -> Result<Option<Self>, KernelError> {
        let (Some(from), Some(to)) = (Table::open(from, name)?, Table::open(to, name)?) else {
            return Ok(None);
        };
        let (key, value) = (Translation::new(&from.key, &to.key), Translation::new(&from.value, &to.value));
        for (part, dropped, new) in
            [Translation::differences(&from.key, &to.key), Translation::differences(&from.value, &to.value)]
                .into_iter()
                .zip(["key", "value"])
                .map(|((dropped, new), part)| (part, dropped, new))
        {
            if !dropped.is_empty() || !new.is_empty() {
                tracing::debug!(map = name, part, ?dropped, ?new, "rows have other fields here");
            }
        }
        Ok(Some(Self { name, from, to, key, value }))
    }

    /// Calls `visit` for every row there.
    ///
    /// # Errors
    /// When the map cannot be read, or `visit` fails.
    pub(super) fn each(&self, mut visit: impl FnMut(Row<'_>) -> io::Result<()>) -> Result<(), KernelError> {
        let limit = self.to.map.is_array().then(|| self.to.map.capacity());
        let row = |key: &[u8], value: &[u8]| {
            let index = key.try_into().map(u32::from_ne_bytes).unwrap_or(0);
            if limit.is_some_and(|limit| index >= limit) {
                return Ok(());
            }
            visit(Row { there: key, key: self.key.apply(key), value: self.translate(value) })
        };
        self.from.map.each(row).map_err(|error| self.error(error))
    }

    /// A value in the layout here. What was one is the first CPU's; what each CPU had is added up where there is one.
    pub(super) fn translate(&self, value: &[u8]) -> Vec<u8> {
        let cpus = self.from.map.values().unwrap_or(1).max(1);
        let each = value.chunks((value.len() / cpus).max(1));
        let each = each.map(|one| self.value.apply(one.get(..self.from.value.size()).unwrap_or(one)));
        let Some(cpus_here) = self.to.map.values() else {
            return each.reduce(|sum, one| self.sum(sum, &one)).unwrap_or_default();
        };
        let width = self.to.value.size().next_multiple_of(8);
        let mut all = Vec::with_capacity(width * cpus_here);
        for mut one in each {
            one.resize(width, 0);
            all.append(&mut one);
        }
        all.resize(width * cpus_here, 0);
        all
    }

    /// The numbers of two values in the layout here, added up.
    fn sum(&self, mut one: Vec<u8>, other: &[u8]) -> Vec<u8> {
        self.to.value.add_growth(&mut one, &vec![0; other.len()], other);
        one
    }

    /// Copies every row that is not empty; with `flags` as in `RawMap::put`, where a row that is
    /// there already is no error.
    ///
    /// # Errors
    /// When a row cannot be read or written.
    pub(super) fn copy(&self, flags: u64) -> Result<usize, KernelError> {
        let mut copied = 0;
        let is_array = self.to.map.is_array();
        self.each(|row| {
            if is_array && row.value.iter().all(|byte| *byte == 0) {
                return Ok(());
            }
            copied += 1;
            unless_there(self.to.map.put(&row.key, &row.value, flags))
        })?;
        Ok(copied)
    }

    /// All rows, in the layout here.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(super) fn rows(&self) -> Result<Rows, KernelError> {
        let mut rows = Rows::new();
        self.each(|row| {
            rows.insert(row.key, row.value);
            Ok(())
        })?;
        Ok(rows)
    }

    /// Adds to the counters here by what those there have grown since `before`.
    ///
    /// # Errors
    /// When a row cannot be read or written.
    pub(super) fn add_growth(&self, before: &Rows) -> Result<(), KernelError> {
        let width = self.to.value.size().next_multiple_of(8);
        let values = self.to.map.values();
        self.each(|row| {
            let zero = vec![0; row.value.len()];
            let old = before.get(&row.key).unwrap_or(&zero);
            if *old == row.value {
                return Ok(());
            }
            let mut here = self.to.map.get(&row.key)?.unwrap_or_else(|| zero.clone());
            if values.is_none() {
                self.to.value.add_growth(&mut here, old, &row.value);
            } else {
                let parts = here.chunks_mut(width).zip(old.chunks(width)).zip(row.value.chunks(width));
                parts.for_each(|((here, old), new)| self.to.value.add_growth(here, old, new));
            }
            self.to.map.put(&row.key, &here, ANY)
        })
    }

    pub(super) fn error(&self, source: io::Error) -> KernelError {
        carry_error(self.name, source)
    }
}

/// A row that is there already was not to be replaced.
pub(super) fn unless_there(put: io::Result<()>) -> io::Result<()> {
    match put {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other,
    }
}

/// Why rows of a map are not carried over.
pub(super) fn carry_error(
    name: &'static str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> KernelError {
    KernelError::Handover { what: format!("the rows of the map {name}"), source: source.into() }
}

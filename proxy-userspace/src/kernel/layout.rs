//! The fields of map rows, by the names that BTF has for them, and the way from one layout to
//! another.
//!
//! An agent knows its own layout only. What an older or a newer one has left names its fields
//! itself: those that both have are carried over, others are dropped or zero.

use btf_rs::{Btf, Type};

/// Nesting of types in a row, which is small; BTF that goes deeper is not ours.
const DEPTH: usize = 16;

/// A number or a run of bytes in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// Names from the outside in, joined by dots; empty if the row is no struct.
    name: String,
    offset: usize,
    size: usize,
    /// It may be widened; a run of bytes may not.
    is_number: bool,
}

/// Why fields cannot be told.
#[derive(Debug, thiserror::Error)]
pub(super) enum LayoutError {
    /// There are none, or the library does not understand them.
    #[error("its type information cannot be read: {0}")]
    Btf(#[from] btf_rs::Error),
    /// The map was made without naming the types of its rows.
    #[error("the kernel keeps no type of its rows")]
    Untyped,
    /// It has what no row of ours has, a pointer for example.
    #[error("a field of its rows is a {0}")]
    Unexpected(&'static str),
    /// It ends beyond the row.
    #[error("the field {0} lies outside of the row")]
    Outside(String),
}

/// The fields of a key or value of `size` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    fields: Vec<Field>,
    size: usize,
}

impl Layout {
    /// The layout of the type with this id.
    ///
    /// # Errors
    /// When the type is not that of a row.
    pub(super) fn of(btf: &Btf, id: u32, size: usize) -> Result<Self, LayoutError> {
        if id == 0 {
            return Err(LayoutError::Untyped);
        }
        let mut fields = Vec::new();
        flatten(btf, &btf.resolve_type_by_id(id)?, String::new(), 0, DEPTH, &mut fields)?;
        if let Some(field) = fields.iter().find(|field| field.offset + field.size > size) {
            return Err(LayoutError::Outside(field.name.clone()));
        }
        Ok(Self { fields, size })
    }

    /// The fields as text: `name@offset+size`, of a run of bytes with a `b` behind.
    pub(super) fn text(&self) -> String {
        let field = |field: &Field| {
            let kind = if field.is_number { "" } else { "b" };
            format!("{}@{}+{}{kind}", field.name, field.offset, field.size)
        };
        self.fields.iter().map(field).collect::<Vec<_>>().join(",")
    }

    /// The fields of a row of `size` bytes; nothing if the text is not one of [`Layout::text`].
    pub(super) fn parse(text: &str, size: usize) -> Option<Self> {
        let field = |text: &str| {
            let (name, place) = text.rsplit_once('@')?;
            let (offset, len) = place.split_once('+')?;
            let bytes = len.strip_suffix('b');
            let (offset, len) = (offset.parse().ok()?, bytes.unwrap_or(len).parse().ok()?);
            let inside = usize::checked_add(offset, len)? <= size;
            let (name, is_number) = (name.to_owned(), bytes.is_none());
            inside.then_some(Field { name, offset, size: len, is_number })
        };
        Some(Self { fields: text.split(',').map(field).collect::<Option<_>>()?, size })
    }

    /// Bytes of the row.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The number in the field called `name`; nothing if there is no such field.
    pub(super) fn number(&self, row: &[u8], name: &str) -> Option<u64> {
        let field = self.fields.iter().find(|field| field.is_number && field.name == name)?;
        let bytes = row.get(field.offset..field.offset + field.size)?;
        let mut wide = [0; 8];
        copy_number(bytes, &mut wide);
        Some(u64::from_ne_bytes(wide))
    }

    /// Writes a number into the field called `name`; false if there is no such field.
    pub(super) fn set_number(&self, row: &mut [u8], name: &str, number: u64) -> bool {
        let field = self.fields.iter().find(|field| field.is_number && field.name == name);
        let bytes = field.and_then(|field| row.get_mut(field.offset..field.offset + field.size));
        let Some(bytes) = bytes else { return false };
        copy_number(&number.to_ne_bytes(), bytes);
        true
    }

    /// Adds to each 64-bit number of `row` what it has grown by from `before` to `after`.
    pub(super) fn add_growth(&self, row: &mut [u8], before: &[u8], after: &[u8]) {
        for field in self.fields.iter().filter(|field| field.is_number && field.size == 8) {
            let read = |row: &[u8]| self.number(row, &field.name).unwrap_or(0);
            let grown = read(row).wrapping_add(read(after).wrapping_sub(read(before)));
            self.set_number(row, &field.name, grown);
        }
    }
}

fn flatten(
    btf: &Btf,
    of: &Type,
    name: String,
    offset: usize,
    depth: usize,
    out: &mut Vec<Field>,
) -> Result<(), LayoutError> {
    let Some(depth) = depth.checked_sub(1) else { return Err(LayoutError::Unexpected("type without end")) };
    match of {
        Type::Int(int) => out.push(Field { name, offset, size: int.size(), is_number: true }),
        Type::Enum(number) => out.push(Field { name, offset, size: number.size(), is_number: true }),
        Type::Struct(fields) => {
            for member in &fields.members {
                let inner = btf.resolve_name(member)?;
                let inner = if name.is_empty() { inner } else { format!("{name}.{inner}") };
                let place = offset + member.bit_offset() as usize / 8;
                flatten(btf, &btf.resolve_chained_type(member)?, inner, place, depth, out)?;
            }
        }
        Type::Array(array) => {
            let element = btf.resolve_chained_type(array)?;
            let mut one = Vec::new();
            flatten(btf, &element, String::new(), 0, depth, &mut one)?;
            match (one.as_slice(), size_of(btf, &element, depth)?) {
                ([Field { size: 1, .. }], 1) => {
                    out.push(Field { name, offset, size: array.len(), is_number: false });
                }
                (_, size) => {
                    for index in 0..array.len() {
                        let place = offset + index * size;
                        flatten(btf, &element, format!("{name}[{index}]"), place, depth, out)?;
                    }
                }
            }
        }
        Type::Typedef(alias) => {
            flatten(btf, &btf.resolve_chained_type(alias)?, name, offset, depth, out)?;
        }
        other => return Err(LayoutError::Unexpected(other.name())),
    }
    Ok(())
}

fn size_of(btf: &Btf, of: &Type, depth: usize) -> Result<usize, LayoutError> {
    let Some(depth) = depth.checked_sub(1) else { return Err(LayoutError::Unexpected("type without end")) };
    Ok(match of {
        Type::Int(int) => int.size(),
        Type::Enum(number) => number.size(),
        Type::Struct(fields) => fields.size(),
        Type::Array(array) => array.len() * size_of(btf, &btf.resolve_chained_type(array)?, depth)?,
        Type::Typedef(alias) => size_of(btf, &btf.resolve_chained_type(alias)?, depth)?,
        other => return Err(LayoutError::Unexpected(other.name())),
    })
}

/// Numbers keep their value in a wider field; in a narrower one, the low part of it.
fn copy_number(from: &[u8], to: &mut [u8]) {
    let len = from.len().min(to.len());
    to.fill(0);
    if cfg!(target_endian = "little") {
        to[..len].copy_from_slice(&from[..len]);
    } else {
        let start = to.len() - len;
        to[start..].copy_from_slice(&from[from.len() - len..]);
    }
}

/// The way from rows of one layout to rows of another.
#[derive(Clone, Debug)]
pub(super) struct Translation {
    /// From where, to where.
    moves: Vec<(Field, Field)>,
    /// Bytes of a row there, and here.
    sizes: (usize, usize),
    same: bool,
}

impl Translation {
    /// From rows as `from` describes them to rows as `to` does.
    pub(super) fn new(from: &Layout, to: &Layout) -> Self {
        let find = |field: &Field| from.fields.iter().find(|other| other.name == field.name);
        let moves =
            to.fields.iter().filter_map(|field| Some((find(field)?.clone(), field.clone()))).collect();
        Self { moves, sizes: (from.size, to.size), same: from == to }
    }

    /// Names of fields that only the one or only the other layout has.
    pub(super) fn differences(from: &Layout, to: &Layout) -> (Vec<String>, Vec<String>) {
        let only = |a: &Layout, b: &Layout| {
            let missing = |field: &&Field| b.fields.iter().all(|other| other.name != field.name);
            a.fields.iter().filter(missing).map(|field| field.name.clone()).collect()
        };
        (only(from, to), only(to, from))
    }

    /// The row in the other layout.
    pub(super) fn apply(&self, row: &[u8]) -> Vec<u8> {
        if self.same || row.len() != self.sizes.0 {
            return row.to_vec();
        }
        let mut out = vec![0; self.sizes.1];
        for (from, to) in &self.moves {
            let source = &row[from.offset..from.offset + from.size];
            let target = &mut out[to.offset..to.offset + to.size];
            if from.is_number && to.is_number {
                copy_number(source, target);
            } else {
                let len = from.size.min(to.size);
                target[..len].copy_from_slice(&source[..len]);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, fields: &[(&str, usize, usize, bool)]) -> Layout {
        let field = |&(name, offset, size, is_number): &(&str, usize, usize, bool)| Field {
            name: name.into(),
            offset,
            size,
            is_number,
        };
        Layout { fields: fields.iter().map(field).collect(), size }
    }

    #[test]
    fn fields_are_found_by_name_wherever_they_are() {
        let old = layout(12, &[("a", 0, 4, true), ("b.octets", 4, 4, false), ("gone", 8, 4, true)]);
        let new = layout(
            24,
            &[("fresh", 0, 8, true), ("b.octets", 8, 4, false), ("a", 12, 8, true), ("c", 20, 1, true)],
        );
        let row: Vec<u8> = [7u32.to_ne_bytes(), [1, 2, 3, 4], 9u32.to_ne_bytes()].concat();
        let moved = Translation::new(&old, &new).apply(&row);
        assert_eq!(moved.len(), 24);
        assert_eq!(moved[8..12], [1, 2, 3, 4]);
        assert_eq!((new.number(&moved, "a"), new.number(&moved, "fresh")), (Some(7), Some(0)));
        assert_eq!(new.number(&moved, "gone"), None);
        let back = Translation::new(&new, &old).apply(&moved);
        assert_eq!(back[..8], row[..8]);
        assert_eq!(old.number(&back, "gone"), Some(0));
        assert_eq!(
            Translation::differences(&old, &new),
            (vec!["gone".into()], vec!["fresh".into(), "c".into()])
        );
    }

    #[test]
    fn counters_grow_by_what_was_counted_meanwhile() {
        let counters = layout(20, &[("packets", 0, 8, true), ("bytes", 8, 8, true), ("other", 16, 4, true)]);
        let row = |packets: u64, bytes: u64| {
            [&packets.to_ne_bytes()[..], &bytes.to_ne_bytes(), &5u32.to_ne_bytes()].concat()
        };
        let mut here = row(12, 100);
        counters.add_growth(&mut here, &row(10, 90), &row(13, 95));
        assert_eq!(here, row(15, 105));
    }

    #[test]
    fn text_that_makes_no_sense_is_no_layout() {
        let layout = layout(8, &[("", 0, 4, true), ("b.octets", 4, 4, false)]);
        assert_eq!(layout.text(), "@0+4,b.octets@4+4b");
        assert_eq!(Layout::parse(&layout.text(), 8), Some(layout));
        for text in ["", "a", "a@0", "a@0+x", "a@4+8", "a@18446744073709551615+8"] {
            assert_eq!(Layout::parse(text, 8), None, "{text}");
        }
    }

    #[test]
    fn numbers_are_set_by_name() {
        let layout = layout(4, &[("first", 0, 2, true), ("count", 2, 2, true)]);
        let mut row = vec![0; 4];
        assert!(layout.set_number(&mut row, "count", 300) && !layout.set_number(&mut row, "x", 1));
        assert_eq!((layout.number(&row, "first"), layout.number(&row, "count")), (Some(0), Some(300)));
    }
}

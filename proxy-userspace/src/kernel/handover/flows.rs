//! Connections on their way from one generation to the next.
//!
//! A row is at home in one generation at a time: it is entered here, then taken from there. The
//! programs of both see every packet, so whichever has the row translates it.

use aya::Pod;
use proxy_common::{
    flow,
    maps::conntrack::{CtEntry, CtKey, flags::SNAT_PENDING},
};

use super::waiting::Waiting;
use crate::kernel::{
    KernelAddr, KernelError,
    bpf::{ANY, NOEXIST, typed},
    carry::{Carrier, carry_error, unless_there},
    family::KernelFamily,
    pins::Pins,
};

/// Rounds over a table that others stop writing to. Rows that come late are those of connections
/// whose first packet was between two hooks.
const ROUNDS: usize = 16;

pub(super) fn bytes<T: Pod>(row: &T) -> &[u8] {
    // SAFETY: plain old data without padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(row).cast(), size_of::<T>()) }
}

fn connections<A: KernelAddr>(from: &Pins, to: &Pins) -> Result<Option<Carrier>, KernelError> {
    Carrier::open(from, to, A::PINS.0.conntrack)
}

/// Makes the connections there known here, so that nothing new is given what they use. Those that
/// are not complete are left out: they change yet.
///
/// # Errors
/// When a row cannot be read or written.
pub(super) fn copy<A: KernelAddr>(
    from: &Pins,
    to: &Pins,
    family: &mut KernelFamily<A>,
    waiting: &mut Waiting<A>,
) -> Result<usize, KernelError> {
    let Some(carrier) = connections::<A>(from, to)? else { return Ok(0) };
    let mut copied = 0;
    carrier.each(|row| {
        let (Some(key), Some(entry)) = (typed::<CtKey<A>>(&row.key), typed::<CtEntry<A>>(&row.value)) else {
            return Ok(());
        };
        if entry.flags & SNAT_PENDING != 0 {
            return Ok(());
        }
        copied += 1;
        waiting.note(&key, &entry);
        family.address_filter.admit_row(&key, &entry).map_err(std::io::Error::other)?;
        unless_there(carrier.to.map.put(&row.key, bytes(&entry.at(&key)), NOEXIST))
    })?;
    Ok(copied)
}

/// A row on its way: the key there, key and value here.
pub(super) type Moving = (Vec<u8>, Vec<u8>, Vec<u8>);

/// Moves these rows.
///
/// # Errors
/// When a row cannot be read or written.
pub(super) fn take<A: KernelAddr>(
    from: &Pins,
    to: &Pins,
    family: &mut KernelFamily<A>,
    rows: &[Moving],
) -> Result<usize, KernelError> {
    let Some(carrier) = connections::<A>(from, to)? else { return Ok(0) };
    for (there, key, value) in rows {
        take_one(&carrier, family, there, key, value).map_err(|error| carrier.error(error))?;
    }
    Ok(rows.len())
}

/// The rows of connections that are closing, or all.
///
/// # Errors
/// When the table cannot be read.
pub(super) fn rows<A: KernelAddr>(
    from: &Pins,
    to: &Pins,
    only_closing: bool,
) -> Result<Vec<Moving>, KernelError> {
    let mut rows = Vec::new();
    let Some(carrier) = connections::<A>(from, to)? else { return Ok(rows) };
    carrier.each(|row| {
        if !only_closing || typed(&row.value).is_some_and(|entry: CtEntry<A>| flow::ends(entry.tcp_flags)) {
            rows.push((row.there.to_vec(), row.key, row.value));
        }
        Ok(())
    })?;
    Ok(rows)
}

/// Moves the connections here until there are none there.
///
/// # Errors
/// When a row cannot be read or written, or there is no end of them.
pub(super) fn take_all<A: KernelAddr>(
    from: &Pins,
    to: &Pins,
    family: &mut KernelFamily<A>,
) -> Result<usize, KernelError> {
    let mut taken = 0;
    for _ in 0..ROUNDS {
        // Read first: rows that are deleted while the kernel walks the table upset the walk.
        let rows = rows::<A>(from, to, false)?;
        if rows.is_empty() {
            return Ok(taken);
        }
        taken += take(from, to, family, &rows)?;
    }
    Err(carry_error(A::PINS.0.conntrack, std::io::Error::other("new ones keep coming")))
}

fn take_one<A: KernelAddr>(
    carrier: &Carrier,
    family: &mut KernelFamily<A>,
    there: &[u8],
    key: &[u8],
    value: &[u8],
) -> std::io::Result<()> {
    let (Some(typed_key), Some(entry)) = (typed::<CtKey<A>>(key), typed::<CtEntry<A>>(value)) else {
        return Ok(());
    };
    family.address_filter.admit_row(&typed_key, &entry).map_err(std::io::Error::other)?;
    // Here before it is gone there: in between, no packet finds neither.
    enter(carrier, key, &entry.at(&typed_key))?;
    let Some(last) = carrier.from.map.take(there)? else { return Ok(()) };
    let last = carrier.translate(&last);
    match typed::<CtEntry<A>>(&last) {
        // It was completed meanwhile.
        Some(last) if last.target(typed_key.proto) != entry.target(typed_key.proto) => {
            carrier.to.map.put(key, bytes(&last.at(&typed_key)), ANY)
        }
        _ => Ok(()),
    }
}

/// Enters a row, unless what is here already belongs to a later connection.
fn enter<A: KernelAddr>(carrier: &Carrier, key: &[u8], entry: &CtEntry<A>) -> std::io::Result<()> {
    let there = match carrier.to.map.put(key, bytes(entry), NOEXIST) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => carrier.to.map.get(key)?,
        other => return other,
    };
    let Some(here) = there.as_deref().and_then(typed::<CtEntry<A>>) else { return Ok(()) };
    match merge(entry, &here) {
        Some(row) => carrier.to.map.put(key, bytes(&row), ANY),
        None => Ok(()),
    }
}

/// What becomes of the row here; nothing if it stays.
///
/// Of two that lead elsewhere one belongs to a connection that has ended. Either the other one began here; or it
/// began there after the rows had been copied, by the client's port or the source port of the one that had ended.
fn merge<A: KernelAddr>(there: &CtEntry<A>, here: &CtEntry<A>) -> Option<CtEntry<A>> {
    let same = there.target(0) == here.target(0) && there.role == here.role;
    let completed = here.flags & SNAT_PENDING != 0 && there.flags & SNAT_PENDING == 0;
    if !same && !completed {
        return (there.last_seen > here.last_seen).then_some(*there);
    }
    let mut row = if completed || there.last_seen >= here.last_seen { *there } else { *here };
    row.tcp_flags |= there.tcp_flags | here.tcp_flags;
    row.flags |= there.flags & here.flags;
    (row != *here).then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_common::{addr::Ip4, maps::conntrack::flags::LASTING};

    fn row(port: u16, last_seen: u64, flags: u8, tcp_flags: u8) -> CtEntry<Ip4> {
        CtEntry { sport: port, last_seen, flags, tcp_flags, ..CtEntry::default() }
    }

    #[test]
    fn the_row_that_saw_the_last_packet_wins() {
        let (older, newer) = (row(1, 10, 0, 2), row(1, 20, LASTING, 16));
        assert_eq!(merge(&newer, &older), Some(row(1, 20, LASTING, 18)));
        assert_eq!(merge(&older, &newer), Some(row(1, 20, LASTING, 18)));
        assert_eq!(merge(&older, &older), None);
    }

    #[test]
    fn the_connection_that_began_last_keeps_its_row() {
        assert_eq!(merge(&row(1, 10, 0, 1), &row(2, 20, 0, 0)), None);
        assert_eq!(merge(&row(1, 20, 0, 0), &row(2, 10, 0, 1)), Some(row(1, 20, 0, 0)));
        let completed = row(7, 10, 0, 0);
        assert_eq!(merge(&completed, &row(1, 20, SNAT_PENDING, 0)), Some(completed));
    }

    #[test]
    fn bytes_and_rows() {
        let entry = row(7, 8, 9, 10);
        assert_eq!(typed::<CtEntry<Ip4>>(bytes(&entry)), Some(entry));
        assert_eq!(typed::<CtEntry<Ip4>>(&bytes(&entry)[1..]), None);
    }
}

//! Which slots the scopes of a service port have, and what stands in them. A set that leads
//! to the same backends in the same way is kept as it is: its table is not made again, and
//! nothing is written.

use std::net::SocketAddr;

use proxy_common::maps::{backends::Backend, slots::SlotRange};

use super::{
    FamilyMaps, MapAddr, MapError, MapName, backends::BackendTable, encode, family::FamilyTable,
    ranges::Ranges,
};
use crate::{
    model::Protocol,
    plan::{
        BackendRow, Scope, Spread,
        maglev::{self, Use},
    },
};

/// Backends of a service port that the kernel may refer to.
#[derive(Debug, Default)]
pub(super) struct Port {
    /// Sets that frontends name, or named when a write failed.
    pub(super) sets: Vec<SlotSet>,
    /// Ids of backends that keep their rows without being in a set.
    pub(super) lingering: Box<[u32]>,
}

/// Backend ids in a range of slots.
#[derive(Debug)]
pub(super) struct SlotSet {
    pub(super) range: SlotRange,
    /// What stands in the slots.
    pub(super) ids: Box<[u32]>,
    /// The backends among them, each once.
    pub(super) members: Box<[u32]>,
    /// What it was made of; unknown for what an earlier agent wrote.
    made_of: Option<Layout>,
    /// There was no room for what was wanted: a smaller table, or one slot for each.
    reduced: bool,
    /// The kernel is known to hold the ids; before, no frontend names the range.
    pub(super) written: bool,
}

/// What the slots of a set follow from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layout {
    /// Ids and weights, in the order of addresses.
    backends: Box<[(u32, u16)]>,
    spread: Spread,
}

impl Port {
    /// Every backend that flows of this port may go on to.
    pub(super) fn backends(&self) -> impl Iterator<Item = u32> {
        self.sets.iter().flat_map(|set| &set.members).chain(&self.lingering).copied()
    }
}

impl SlotSet {
    /// A set as an earlier agent left it. Unsound ids lead nowhere and count for nothing.
    pub(super) fn adopted(range: SlotRange, ids: Vec<u32>) -> Self {
        let mut members = ids.clone();
        members.sort_unstable();
        members.dedup();
        Self { range, ids: ids.into(), members: members.into(), made_of: None, reduced: false, written: true }
    }

    fn is_made_of(&self, layout: &Layout, len: u32) -> bool {
        self.range.len == len && self.made_of.as_ref() == Some(layout)
    }

    fn is_adopted(&self, len: u32) -> bool {
        self.range.len == len && self.made_of.is_none()
    }

    pub(super) fn release<A: MapAddr>(self, backends: &mut BackendTable<A>, ranges: &mut Ranges) {
        self.members.iter().for_each(|id| backends.release(*id));
        if self.written { ranges.release(self.range) } else { ranges.release_unread(self.range) }
    }
}

impl<A: MapAddr> FamilyTable<A> {
    /// The range for a scope: the one the port has, or a fresh one.
    pub(super) fn slot_set(
        &mut self,
        service: u32,
        protocol: Protocol,
        scope: &Scope,
    ) -> Result<SlotRange, MapError> {
        let encoded = scope.backends.iter().map(|row| Some((encode::backend::<A>(row, protocol)?, row)));
        let rows: Vec<(Backend<A>, &BackendRow)> = encoded.flatten().collect();
        if rows.is_empty() {
            return Ok(SlotRange::default());
        }
        let members = self.acquire_all(rows.iter().map(|(row, _)| *row))?;
        let backends = members.iter().zip(&rows).map(|(id, (_, row))| (*id, row.weight)).collect();
        let addrs: Vec<_> = rows.iter().map(|(_, row)| (row.addr, row.weight)).collect();
        let found = self.find_or_make(service, Layout { backends, spread: scope.spread }, &members, &addrs);
        if !matches!(found, Ok(Found { fresh: true, .. })) {
            members.iter().for_each(|id| self.backends.release(*id));
        }
        found.map(|found| found.range)
    }

    fn acquire_all(&mut self, rows: impl Iterator<Item = Backend<A>>) -> Result<Vec<u32>, MapError> {
        let mut ids = Vec::with_capacity(rows.size_hint().0);
        for row in rows {
            match self.backends.acquire(row) {
                Ok(id) => ids.push(id),
                Err(e) => {
                    ids.iter().for_each(|id| self.backends.release(*id));
                    return Err(e);
                }
            }
        }
        Ok(ids)
    }

    /// The set of this layout in the best form there is room for. One that the port has, or
    /// that an earlier agent made, is taken as it is. A fresh one uses each of its members.
    fn find_or_make(
        &mut self,
        service: u32,
        layout: Layout,
        members: &[u32],
        addrs: &[(SocketAddr, u16)],
    ) -> Result<Found, MapError> {
        let port = self.ports.entry(service).or_default();
        let forms = Form::of(&layout, self.ranges.capacity());
        for (rank, form) in forms.iter().enumerate() {
            let reduced = rank > 0;
            if let Some(set) = port.sets.iter().find(|set| set.is_made_of(&layout, form.len)) {
                return Ok(Found { range: set.range, fresh: false });
            }
            let may_exist = port.sets.iter().any(|set| set.is_adopted(form.len));
            let range = self.ranges.take_leaving(form.len, form.reserve);
            if range.is_none() && !may_exist {
                continue;
            }
            let ids = form.fill(members, addrs);
            let mut adopted = port.sets.iter_mut().filter(|set| set.is_adopted(form.len));
            if let Some(set) = adopted.find(|set| *set.ids == *ids) {
                range.into_iter().for_each(|range| self.ranges.release_unread(range));
                (set.made_of, set.reduced) = (Some(layout), reduced);
                return Ok(Found { range: set.range, fresh: false });
            }
            let Some(range) = range else { continue };
            let (ids, members, made_of) = (ids.into(), members.into(), Some(layout));
            port.sets.push(SlotSet { range, ids, members, made_of, reduced, written: false });
            return Ok(Found { range, fresh: true });
        }
        Err(MapError::Full { map: MapName::Slots, capacity: self.ranges.capacity() })
    }

    /// Step 3: slots that no frontend names yet.
    pub(super) fn write_slots(
        &mut self,
        maps: &mut impl FamilyMaps<A>,
        services: impl Iterator<Item = u32>,
    ) -> Result<usize, MapError> {
        let mut count = 0;
        for service in services {
            let Some(port) = self.ports.get_mut(&service) else { continue };
            for set in port.sets.iter_mut().filter(|set| !set.written) {
                maps.put_slots(set.range.offset, &set.ids)?;
                set.written = true;
                count += set.ids.len();
            }
        }
        Ok(count)
    }

    /// Tables for which there was no room.
    pub(super) fn reduced_tables(&self) -> usize {
        self.ports.values().flat_map(|port| &port.sets).filter(|set| set.reduced).count()
    }
}

/// A range that has what was asked for.
struct Found {
    range: SlotRange,
    /// It was made just now.
    fresh: bool,
}

/// One way to lay out a scope in slots.
struct Form {
    /// The slots it takes.
    len: u32,
    /// The slots that must be left to others.
    reserve: u32,
    is_table: bool,
}

impl Form {
    /// From the one that is wanted to the one that takes the fewest slots. Tables leave room,
    /// for services that need none must not go without their few slots.
    fn of(layout: &Layout, capacity: u32) -> Vec<Self> {
        let backends = layout.backends.len() as u32;
        let table = |usage, reserve| {
            // An update takes the new table while the old one is in use.
            let len = maglev::size(layout.backends.len(), usage, capacity / 4);
            Self { len, reserve, is_table: true }
        };
        let mut forms = match layout.spread {
            Spread::Table(usage) => vec![table(usage, capacity / 4), table(Use::Chance, capacity / 8)],
            Spread::Even => Vec::new(),
        };
        forms.retain(|form| form.len > backends);
        forms.push(Self { len: backends, reserve: 0, is_table: false });
        forms.dedup_by_key(|form| form.len);
        forms
    }

    /// What stands in the slots.
    fn fill(&self, members: &[u32], addrs: &[(SocketAddr, u16)]) -> Vec<u32> {
        if !self.is_table {
            return members.to_vec();
        }
        let table = maglev::table(addrs, self.len).into_iter();
        table.filter_map(|index| members.get(index as usize).copied()).collect()
    }
}

#[cfg(test)]
mod tests;

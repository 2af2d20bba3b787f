//! Which slots the scopes of a service port have, and what stands in them. A set that leads
//! to the same backends in the same way is kept as it is: its table is not made again, and
//! nothing is written.

use std::net::SocketAddr;

use proxy_common::maps::{backends::Backend, slots::SlotRange};

use super::{
    FamilyMaps, MapAddr, MapError, backends::BackendTable, encode, family::FamilyTable, ranges::Ranges,
};
use crate::{
    model::{Protocol, Weights},
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
    /// What stands in the slots, unless it is one of the members in each.
    table: Option<Box<[u32]>>,
    /// The backends, each once; in the order of addresses if it is known what it was made of.
    pub(super) members: Box<[u32]>,
    /// How it was made of its members; unknown for what an earlier agent wrote.
    made_by: Option<Making>,
    /// There was no room for what was wanted: a smaller table, or one slot for each.
    reduced: bool,
    /// The kernel is known to hold the ids; before, no frontend names the range.
    pub(super) written: bool,
}

/// What the slots of a set follow from, beside its members.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Making {
    spread: Spread,
    /// None if all have the default.
    weights: Option<Box<[u16]>>,
}

/// What the slots of a set are to follow from.
struct Layout<'a> {
    /// Ids in the order of addresses.
    members: &'a [u32],
    addrs: &'a [(SocketAddr, u16)],
    spread: Spread,
}

impl Layout<'_> {
    fn making(&self) -> Making {
        let weighted = self.addrs.iter().any(|(_, weight)| *weight != Weights::DEFAULT);
        let weights = weighted.then(|| self.addrs.iter().map(|(_, weight)| *weight).collect());
        Making { spread: self.spread, weights }
    }
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
        let table = (members != ids).then(|| ids.into());
        Self { range, table, members: members.into(), made_by: None, reduced: false, written: true }
    }

    /// What stands in the slots.
    pub(super) fn ids(&self) -> &[u32] {
        self.table.as_deref().unwrap_or(&self.members)
    }

    fn is_made_of(&self, layout: &Layout<'_>, making: &Making, len: u32) -> bool {
        self.range.len == len && self.made_by.as_ref() == Some(making) && *self.members == *layout.members
    }

    fn is_adopted(&self, len: u32) -> bool {
        self.range.len == len && self.made_by.is_none()
    }

    /// Notes what a set was made of that an earlier agent wrote. It has the same members.
    fn identify(&mut self, layout: &Layout<'_>, making: Making, reduced: bool) {
        if self.table.is_none() || self.table.as_deref() == Some(layout.members) {
            self.table = None;
        }
        self.members = layout.members.into();
        (self.made_by, self.reduced) = (Some(making), reduced);
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
        let addrs: Vec<_> = rows.iter().map(|(_, row)| (row.addr, row.weight)).collect();
        let layout = Layout { members: &members, addrs: &addrs, spread: scope.spread };
        let found = self.find_or_make(service, &layout);
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
    fn find_or_make(&mut self, service: u32, layout: &Layout<'_>) -> Result<Found, MapError> {
        let port = self.ports.entry(service).or_default();
        let making = layout.making();
        let forms = Form::of(layout, self.ranges.capacity());
        for (rank, form) in forms.iter().enumerate() {
            let reduced = rank > 0;
            if let Some(set) = port.sets.iter().find(|set| set.is_made_of(layout, &making, form.len)) {
                return Ok(Found { range: set.range, fresh: false });
            }
            let may_exist = port.sets.iter().any(|set| set.is_adopted(form.len));
            let range = self.ranges.take_leaving(form.len, form.reserve);
            if range.is_none() && !may_exist {
                self.ranges.ensure_none_rest()?;
                continue;
            }
            let table = form.table(layout);
            let ids = table.as_deref().unwrap_or(layout.members);
            let mut adopted = port.sets.iter_mut().filter(|set| set.is_adopted(form.len));
            if let Some(set) = adopted.find(|set| *set.ids() == *ids) {
                range.into_iter().for_each(|range| self.ranges.release_unread(range));
                set.identify(layout, making, reduced);
                return Ok(Found { range: set.range, fresh: false });
            }
            let Some(range) = range else {
                self.ranges.ensure_none_rest()?;
                continue;
            };
            let (members, made_by) = (layout.members.into(), Some(making));
            // Most ports have one, and keep it.
            port.sets.reserve_exact(1);
            port.sets.push(SlotSet { range, table, members, made_by, reduced, written: false });
            return Ok(Found { range, fresh: true });
        }
        Err(self.ranges.full())
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
                maps.put_slots(set.range.offset, set.ids())?;
                set.written = true;
                count += set.ids().len();
            }
        }
        Ok(count)
    }

    /// Slots with which all tables have their size, also while the largest is made anew.
    pub(super) fn slots_for_tables(&self) -> usize {
        let tables = self.ports.values().flat_map(|port| &port.sets).filter_map(|set| set.table.as_ref());
        let largest = tables.map(|table| table.len()).max().unwrap_or(0);
        slots_for_tables(self.ranges.used() as usize, largest)
    }

    /// Tables for which there was no room.
    pub(super) fn reduced_tables(&self) -> usize {
        self.ports.values().flat_map(|port| &port.sets).filter(|set| set.reduced).count()
    }
}

/// Slots with which lookup tables have the size they should have: `used` is what all scopes take, `largest`
/// the slots of the largest table. [`Form::of`] says what tables leave to others.
pub fn slots_for_tables(used: usize, largest: usize) -> usize {
    if largest == 0 {
        return used;
    }
    // While a table is made anew, both exist; a quarter stays free, and no table has more than another.
    let all = used.saturating_add(largest).saturating_mul(4).div_ceil(3);
    all.max(largest.saturating_add(1).saturating_mul(4))
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
    fn of(layout: &Layout<'_>, capacity: u32) -> Vec<Self> {
        let backends = layout.members.len() as u32;
        let table = |usage, reserve| {
            // An update takes the new table while the old one is in use.
            let len = maglev::size(layout.members.len(), usage, capacity / 4);
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

    /// What stands in the slots, unless it is one of the members in each.
    fn table(&self, layout: &Layout<'_>) -> Option<Box<[u32]>> {
        let table = self.is_table.then(|| maglev::table(layout.addrs, self.len).into_iter())?;
        Some(table.filter_map(|index| layout.members.get(index as usize).copied()).collect())
    }
}

#[cfg(test)]
mod tests;

//! What a program may still read that ran when it was named, and whether somebody has written there.

use std::collections::{BTreeMap, BTreeSet};

use proxy_common::maps::{
    backends::Backend,
    frontends::{Frontend, FrontendKey},
    slots::SlotRange,
};

use super::{MapAddr, MemoryFamily};

/// Programs that have read a frontend, and have not come to its slots or their backends yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readers {
    /// Ranges that frontends have named since the last wait, and do not any more.
    left: BTreeSet<(u32, u32)>,
    /// What was written where such a program reads, and would lead its packet elsewhere.
    pub misled: Vec<String>,
}

impl Readers {
    /// All have ended.
    pub(super) fn end(&mut self) {
        self.left.clear();
    }

    fn leave(&mut self, range: SlotRange) {
        if range.len > 0 {
            self.left.insert((range.offset, range.len));
        }
    }
}

impl<A: MapAddr> MemoryFamily<A> {
    /// Notes that a frontend is about to go, or to be another.
    pub(super) fn leave(&mut self, frontend: Option<Frontend>) {
        let Some(readers) = &mut self.readers else { return };
        for range in frontend.into_iter().flat_map(|frontend| [frontend.cluster, frontend.local]) {
            readers.leave(range);
        }
    }

    /// Notes what programs find that come to a slot which is about to be written.
    pub(super) fn look_at_slots(&mut self, offset: u32, ids: &[u32]) {
        let Some(readers) = &mut self.readers else { return };
        let written = offset..offset + ids.len() as u32;
        let is_other = |slot: &u32| {
            written.contains(slot) && self.slots[*slot as usize] != ids[(slot - offset) as usize]
        };
        let slot = slots(&self.frontends, readers).find(is_other);
        readers.misled.extend(slot.map(|slot| format!("slot {slot} is written while it is read")));
    }

    /// The same of a backend.
    pub(super) fn look_at_backend(&mut self, id: u32, row: &Backend<A>) {
        let Some(readers) = &mut self.readers else { return };
        let held = &self.backends[id as usize];
        let leads_elsewhere = (held.addr, held.port, held.proto) != (row.addr, row.port, row.proto);
        if leads_elsewhere && slots(&self.frontends, readers).any(|slot| self.slots[slot as usize] == id) {
            readers.misled.push(format!("backend {id} is written while it is read"));
        }
    }
}

/// Slots that programs may come to.
fn slots<A>(frontends: &BTreeMap<FrontendKey<A>, Frontend>, readers: &Readers) -> impl Iterator<Item = u32> {
    let named = frontends.values().flat_map(|frontend| [frontend.cluster, frontend.local]);
    let left = readers.left.iter().map(|(offset, len)| SlotRange { offset: *offset, len: *len });
    named.chain(left).flat_map(|range| range.offset..range.offset + range.len)
}

//! The rows of one family: what the kernel holds as far as is known, and the steps that
//! bring it to what is wanted. The caller takes the steps in the order in which they
//! stand here; each is safe on its own, and can be taken again after it failed.

use std::collections::{HashMap, HashSet};

use proxy_common::maps::{
    backends::{Backend, flags},
    frontends::{Frontend, FrontendKey},
    source_ranges::SourceRange,
};

use super::{
    FamilyMaps, MapAddr, MapError, backends::BackendTable, encode, ranges::Ranges, slot_sets::Port,
    source_ranges::SourceRanges,
};
use crate::plan::{PortPlan, Scope, Spread};

/// What is known of one family's maps.
#[derive(Debug)]
pub(super) struct FamilyTable<A> {
    pub(super) ports: HashMap<u32, Port>,
    pub(super) frontends: HashMap<FrontendKey<A>, Written>,
    pub(super) backends: BackendTable<A>,
    pub(super) ranges: Ranges,
    /// The frontends of each port; a key that another port took over may still be listed.
    pub(super) keys: HashMap<u32, Vec<FrontendKey<A>>>,
    pub(super) source_ranges: HashMap<u32, SourceRanges<A>>,
    pub(super) keep: Keep<A>,
    /// What the kernel may hold for a frontend in place of the value that is noted, after writes that failed. What
    /// these values name stays for as long.
    pub(super) doubts: HashMap<FrontendKey<A>, Vec<Frontend>>,
}

/// Which frontends stay for now that their port does not want any more: another port may be about to take one over, and
/// there is to be no moment without it.
#[derive(Debug)]
pub(super) struct Keep<A> {
    /// All of which it is known what they say.
    pub(super) certain: bool,
    /// These in any case.
    pub(super) wanted: HashSet<FrontendKey<A>>,
}

impl<A> Default for Keep<A> {
    /// None.
    fn default() -> Self {
        Self { certain: false, wanted: HashSet::new() }
    }
}

/// A frontend that the kernel holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Its value, which names the service port it belongs to.
    pub(super) value: Frontend,
    /// False after a write that failed: the kernel may hold this value or an older one.
    pub(super) certain: bool,
}

/// A service port about to be changed.
#[derive(Debug)]
pub(super) struct Staged<A> {
    pub(super) service: u32,
    pub(super) source_ranges: Vec<SourceRange<A>>,
    wanted: Vec<(FrontendKey<A>, Frontend)>,
    lingering: Box<[u32]>,
}

impl<A: MapAddr> Staged<A> {
    pub(super) fn frontend_count(&self) -> usize {
        self.wanted.len()
    }

    pub(super) fn frontend_keys(&self) -> impl Iterator<Item = FrontendKey<A>> {
        self.wanted.iter().map(|(key, _)| *key)
    }
}

/// Rows written or deleted in one step.
pub(super) type Rows = usize;

impl<A: MapAddr> FamilyTable<A> {
    /// Gives ids and ranges to what a service port wants; no plan means that it is gone.
    /// Nothing is written yet.
    pub(super) fn stage(&mut self, service: u32, plan: Option<&PortPlan>) -> Result<Staged<A>, MapError> {
        let mut staged =
            Staged { service, source_ranges: Vec::new(), wanted: Vec::new(), lingering: [].into() };
        self.drop_unwritten_sets(service);
        let Some(plan) = plan.filter(|plan| !plan.frontends.is_empty()) else { return Ok(staged) };
        let cluster = self.slot_set(service, plan.protocol, &plan.cluster)?;
        let local = self.slot_set(service, plan.protocol, &plan.local)?;
        let returning = Scope { backends: plan.returning.clone(), spread: Spread::Even };
        let returning = self.slot_set(service, plan.protocol, &returning)?;
        for row in &plan.frontends {
            let Some(key) = encode::frontend_key::<A>(row) else { continue };
            let mut value =
                Frontend { service, rules: row.rules.pack(), kind: row.kind.0, ..Frontend::default() };
            if encode::leads_to_backends(row) {
                let local = if row.returns_directly() { returning } else { local };
                let flags = encode::frontend_flags(row);
                value = Frontend { cluster, local, affinity_secs: plan.affinity_secs, flags, ..value };
            }
            staged.wanted.push((key, value));
        }
        let ranges = plan.source_ranges.iter().filter_map(|net| encode::source_range(service, net));
        staged.source_ranges = ranges.collect();
        let rows = plan.lingering.iter().filter_map(|row| encode::backend::<A>(row, plan.protocol));
        staged.lingering = rows.filter_map(|row| self.backends.acquire_known(&row)).collect();
        Ok(staged)
    }

    /// Gives back what a service port was given and did not come to use.
    pub(super) fn drop_unwritten(&mut self, service: u32) {
        self.drop_unwritten_sets(service);
        if self.ports.get(&service).is_some_and(|port| port.sets.is_empty() && port.lingering.is_empty()) {
            self.ports.remove(&service);
        }
    }

    fn drop_unwritten_sets(&mut self, service: u32) {
        let Some(port) = self.ports.get_mut(&service) else { return };
        for set in port.sets.extract_if(.., |set| !set.written) {
            set.release(&mut self.backends, &mut self.ranges);
        }
    }

    /// Step 1: frontends that nobody wants any more, but for those that are to be kept. One that another staged port
    /// wants is left to be overwritten, so that there is no moment without it.
    pub(super) fn delete_frontends(
        &mut self,
        maps: &mut impl FamilyMaps<A>,
        staged: &[Staged<A>],
    ) -> Result<Rows, MapError> {
        let wanted: HashSet<_> = staged.iter().flat_map(Staged::frontend_keys).collect();
        let gone = self.gone(staged, &wanted);
        if gone.is_empty() {
            return Ok(0);
        }
        let deleted = maps.delete_frontends(&gone);
        for key in &gone {
            match &deleted {
                Ok(()) => {
                    self.frontends.remove(key);
                    self.doubts.remove(key);
                }
                Err(_) => self.doubt(key),
            }
        }
        deleted.map(|()| gone.len())
    }

    /// Frontends of these ports that are neither wanted by any of them nor to be kept.
    pub(super) fn gone(&self, staged: &[Staged<A>], wanted: &HashSet<FrontendKey<A>>) -> Vec<FrontendKey<A>> {
        let keys = staged.iter().flat_map(|port| self.own_keys(port.service));
        let mut gone: Vec<_> = keys.filter(|key| !wanted.contains(key) && !self.keeps(key)).collect();
        // In doubt it is that of several.
        gone.sort_unstable();
        gone.dedup();
        gone
    }

    fn keeps(&self, key: &FrontendKey<A>) -> bool {
        let certain = || self.frontends.get(key).is_some_and(|written| written.certain);
        self.keep.wanted.contains(key) || self.keep.certain && certain()
    }

    /// Once everything is written: the frontends that a port has kept although it does not want them.
    pub(super) fn kept(&self, port: &Staged<A>) -> Vec<FrontendKey<A>> {
        let wants = |key: &FrontendKey<A>| port.wanted.iter().any(|(wanted, _)| wanted == key);
        self.own_keys(port.service).filter(|key| !wants(key)).collect()
    }

    /// The frontends that the kernel holds for a port, or may hold.
    pub(super) fn own_keys(&self, service: u32) -> impl Iterator<Item = FrontendKey<A>> {
        let keys = self.keys.get(&service).map_or(&[][..], Vec::as_slice);
        keys.iter().filter(move |key| self.values(key, service).next().is_some()).copied()
    }

    /// What the kernel may hold for a frontend of this port.
    fn values(&self, key: &FrontendKey<A>, service: u32) -> impl Iterator<Item = Frontend> {
        let noted = self.frontends.get(key).map(|written| written.value);
        let doubts = self.doubts.get(key).map_or(&[][..], Vec::as_slice);
        noted.into_iter().chain(doubts.iter().copied()).filter(move |value| value.service == service)
    }

    fn doubt(&mut self, key: &FrontendKey<A>) {
        if let Some(written) = self.frontends.get_mut(key) {
            written.certain = false;
        }
    }

    /// Step 2: backends of sets that are about to be written.
    pub(super) fn write_backends(
        &mut self,
        maps: &mut impl FamilyMaps<A>,
        staged: &[Staged<A>],
    ) -> Result<Rows, MapError> {
        let ports = staged.iter().filter_map(|port| self.ports.get(&port.service));
        let sets = ports.flat_map(|port| &port.sets);
        let mut rows: Vec<_> = sets.flat_map(|set| self.backends.unwritten(&set.members)).collect();
        rows.extend(staged.iter().flat_map(|port| self.backends.unwritten(&port.lingering)));
        rows.sort_unstable_by_key(|(id, _)| *id);
        rows.dedup_by_key(|(id, _)| *id);
        if rows.is_empty() {
            return Ok(0);
        }
        let written = maps.put_backends(&rows);
        self.backends.set_written(rows.iter().map(|(id, _)| *id), written.is_ok());
        written.map(|()| rows.len())
    }

    /// Step 4: frontends. From here on packets go by the new rows.
    pub(super) fn write_frontends(
        &mut self,
        maps: &mut impl FamilyMaps<A>,
        staged: &[Staged<A>],
    ) -> Result<Rows, MapError> {
        let wanted = staged.iter().flat_map(|port| &port.wanted).copied();
        let differs = |(key, value): &(FrontendKey<A>, Frontend)| {
            self.frontends.get(key).is_none_or(|known| !known.certain || known.value != *value)
        };
        let rows: Vec<_> = wanted.filter(differs).collect();
        if rows.is_empty() {
            return Ok(0);
        }
        let written = maps.put_frontends(&rows);
        for (key, value) in &rows {
            self.note_frontend(key, *value, written.is_ok());
        }
        written.map(|()| rows.len())
    }

    /// A row whose write failed is noted with an owner, so that somebody deletes it. An owner it had stays, too: the
    /// row may be the old one or the new one.
    fn note_frontend(&mut self, key: &FrontendKey<A>, value: Frontend, certain: bool) {
        let known = self.frontends.get(key).copied();
        let is_listed = self.own_keys(value.service).any(|own| own == *key);
        if !certain && known.is_some() {
            let doubts = self.doubts.entry(*key).or_default();
            if !doubts.contains(&value) {
                doubts.push(value);
            }
            self.doubt(key);
        } else {
            self.frontends.insert(*key, Written { value, certain });
            self.doubts.remove(key);
        }
        if !is_listed {
            self.keys.entry(value.service).or_default().push(*key);
        }
    }

    /// Step 5: what only the old rows needed is given back. What is kept still needs it. Nothing is written. True if
    /// something is kept.
    pub(super) fn commit(&mut self, staged: Vec<Staged<A>>) -> bool {
        let mut keeps = false;
        for staged in staged {
            let kept = self.kept(&staged);
            let values = |key: &FrontendKey<A>| {
                self.values(key, staged.service).map(|value| (*key, value)).collect::<Vec<_>>()
            };
            let kept: Vec<_> = kept.iter().flat_map(values).collect();
            let Staged { service, mut wanted, lingering, .. } = staged;
            keeps |= !kept.is_empty();
            wanted.extend(kept);
            let port = self.ports.entry(service).or_default();
            let ranges: HashSet<_> =
                wanted.iter().flat_map(|(_, value)| [value.cluster, value.local]).collect();
            for set in port.sets.extract_if(.., |set| !ranges.contains(&set.range)) {
                set.release(&mut self.backends, &mut self.ranges);
            }
            let old = std::mem::replace(&mut port.lingering, lingering);
            old.iter().for_each(|id| self.backends.release(*id));
            if wanted.is_empty() {
                self.ports.remove(&service);
                self.keys.remove(&service);
            } else {
                let mut keys: Vec<_> = wanted.into_iter().map(|(key, _)| key).collect();
                keys.dedup();
                keys.shrink_to_fit();
                self.keys.insert(service, keys);
            }
        }
        keeps
    }

    /// Step 6: backends without a user are taken out. What their rows say stays: a program may have read a slot
    /// before that names one, and goes there as it would have an instant earlier.
    pub(super) fn take_out_backends(&mut self, maps: &mut impl FamilyMaps<A>) -> Result<Rows, MapError> {
        let idle = self.backends.idle();
        if idle.is_empty() {
            return Ok(0);
        }
        let out = |row: &Backend<A>| Backend { flags: row.flags & !flags::PRESENT, ..*row };
        let rows: Vec<_> = idle.iter().filter_map(|id| Some((*id, out(self.backends.row(*id)?)))).collect();
        if let Err(e) = maps.put_backends(&rows) {
            self.backends.set_written(idle, false);
            return Err(e);
        }
        self.backends.forget_idle();
        Ok(rows.len())
    }

    /// Has backends of an earlier agent taken out that nobody has asked for. False if that has been done.
    pub(super) fn release_adopted(&mut self) -> bool {
        self.backends.release_adopted()
    }

    /// Makes what was given back before available: every program that may have come across it has ended.
    pub(super) fn settle(&mut self) {
        self.backends.settle();
        self.ranges.settle();
    }

    /// True if [`FamilyTable::settle`] would make something available.
    pub(super) fn rests(&self) -> bool {
        self.backends.resting() > 0 || self.ranges.resting() > 0
    }

    /// Takes back what was staged, when it is not going to be written.
    pub(super) fn unstage(&mut self, staged: Vec<Staged<A>>) {
        for id in staged.iter().flat_map(|port| &port.lingering) {
            self.backends.release(*id);
        }
    }

    /// The service ports that rows name, some of them more than once.
    pub(super) fn named(&self) -> impl Iterator<Item = u32> {
        self.keys.keys().chain(self.source_ranges.keys()).copied()
    }

    /// True when the kernel holds rows of a service port.
    pub(super) fn has(&self, service: u32) -> bool {
        self.ports.contains_key(&service)
            || self.keys.contains_key(&service)
            || self.source_ranges.contains_key(&service)
    }
}

//! Carries out plans, and keeps what could not be carried out until it can.

mod leaving;
mod refused;
mod room;
mod share;

use std::collections::{BTreeMap, HashSet};

use proxy_common::addr::{Ip4, Ip6};

pub use self::share::share;
use self::{refused::Refused, share::split_off_too_large};
use super::{
    MapError, MapStore,
    family::{FamilyTable, Staged},
    node,
    services::ServiceTable,
};
use crate::{
    model::{Family, ObjectName},
    plan::{NodePlan, PortPlan},
};

/// Services whose rows are written in one go. Large enough for batches that keep the
/// kernel busy, small enough that a row that fails holds up few others.
const CHUNK: usize = 1024;

/// What is wanted of a Service; nothing when it is to go.
type Waiting = Box<[PortPlan]>;

/// What is wanted and what the kernel holds, and the way from one to the other.
///
/// Plans wait in `pending` until every row of them is written; what is known of the
/// kernel changes only after the write it depends on.
#[derive(Debug)]
pub struct Reconciler {
    pub(super) services: ServiceTable,
    pub(super) v4: FamilyTable<Ip4>,
    pub(super) v6: FamilyTable<Ip6>,
    pending: BTreeMap<ObjectName, Waiting>,
    /// Why services are still pending.
    failures: BTreeMap<ObjectName, MapError>,
    /// Services for which there is no room.
    refused: BTreeMap<ObjectName, Refused>,
    /// Services found in the maps that no plan has named yet.
    adopted: HashSet<ObjectName>,
    pub(super) pruned: bool,
    pub(super) node: Option<NodePlan>,
    pub(super) node_pending: bool,
    node_failure: Option<MapError>,
    /// Ids whose last rows are gone, until their own row is too.
    departed: Vec<u32>,
    cleanup_failure: Option<MapError>,
    /// Services that are written, but for frontends that go later.
    leaving: Vec<(ObjectName, Waiting)>,
    chunk: usize,
}

/// What an [`Reconciler::apply`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Services that are up to date since.
    pub services: usize,
    /// Rows written or deleted.
    pub rows: usize,
    /// Services that stay pending.
    pub failed: usize,
}

/// The staged ports of both families.
#[derive(Default)]
struct Chunk {
    v4: Vec<Staged<Ip4>>,
    v6: Vec<Staged<Ip6>>,
    /// Ids of the ports that will have rows.
    live: Vec<u32>,
}

impl Reconciler {
    /// Takes over what the maps hold, with the ids it has there.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn adopt(maps: &mut impl MapStore) -> Result<Self, MapError> {
        // What is free now may have been given back an instant ago.
        maps.wait_for_programs()?;
        let v4 = FamilyTable::adopt(maps.v4())?;
        let v6 = FamilyTable::adopt(maps.v6())?;
        let mut rows = maps.services()?;
        rows.sort_unstable_by_key(|(id, _)| *id);
        let mut named: Vec<_> = v4.named().chain(v6.named()).collect();
        named.sort_unstable();
        named.dedup();
        let services = ServiceTable::adopt(maps.service_capacity(), &rows, &named);
        let adopted = services.objects().cloned().collect();
        Ok(Self {
            services,
            v4,
            v6,
            pending: BTreeMap::new(),
            failures: BTreeMap::new(),
            refused: BTreeMap::new(),
            adopted,
            pruned: false,
            node: None,
            node_pending: false,
            node_failure: None,
            departed: Vec::new(),
            cleanup_failure: None,
            leaving: Vec::new(),
            chunk: CHUNK,
        })
    }

    /// Wants exactly these rows for a service from the next [`Reconciler::apply`] on.
    pub fn update(&mut self, service: ObjectName, plans: Vec<PortPlan>) {
        self.adopted.remove(&service);
        self.refused.remove(&service);
        self.pending.insert(service, plans.into());
    }

    /// Wants no rows for a service.
    pub fn remove(&mut self, service: ObjectName) {
        self.update(service, Vec::new());
    }

    /// Wants these rows for the node.
    pub fn set_node(&mut self, plan: NodePlan) {
        if self.node.as_ref() != Some(&plan) {
            self.node = Some(plan);
            self.node_pending = true;
        }
    }

    /// Wants the rows gone of every service that no plan has named: to be called once all
    /// that exists has been planned.
    pub fn prune(&mut self) {
        for service in std::mem::take(&mut self.adopted) {
            self.pending.insert(service, [].into());
        }
        self.pruned = true;
    }

    /// Writes what is pending. What fails stays pending.
    pub fn apply(&mut self, maps: &mut impl MapStore) -> Applied {
        self.apply_all(maps, std::iter::empty())
    }

    /// Writes what is pending and these plans, in the place of older ones. They are asked for as
    /// they are written, so that those of a large cluster are never in memory all at once.
    pub fn apply_all(
        &mut self,
        maps: &mut impl MapStore,
        mut plans: impl Iterator<Item = (ObjectName, Vec<PortPlan>)>,
    ) -> Applied {
        plans.by_ref().take(self.chunk).for_each(|(service, plans)| self.update(service, plans));
        let mut applied = Applied::default();
        self.apply_node(maps, &mut applied);
        if self.cleanup_failure.is_some() {
            self.clear(maps, &mut applied);
        }
        self.keep_what_may_be_taken_over();
        let mut waiting = std::mem::take(&mut self.pending);
        while !waiting.is_empty() {
            let rest = waiting.keys().nth(self.chunk).cloned().map(|first| waiting.split_off(&first));
            let chunk = std::mem::replace(&mut waiting, rest.unwrap_or_default());
            self.apply_chunk(maps, chunk.into_iter().collect(), &mut applied);
        }
        loop {
            let chunk: Vec<_> =
                plans.by_ref().take(self.chunk).map(|(name, plans)| (name, plans.into())).collect();
            if chunk.is_empty() {
                break;
            }
            for (service, _) in &chunk {
                self.adopted.remove(service);
                self.refused.remove(service);
                self.pending.remove(service);
            }
            self.apply_chunk(maps, chunk, &mut applied);
        }
        self.let_go(maps, &mut applied);
        if self.pruned {
            self.release_adopted(maps, &mut applied);
        }
        applied.failed = self.pending.len();
        applied
    }

    /// Takes out backends of an earlier agent that no service has asked for, be it for what lingers there. False if that
    /// has been done.
    fn release_adopted(&mut self, maps: &mut impl MapStore, applied: &mut Applied) -> bool {
        let [v4, v6] = [self.v4.release_adopted(), self.v6.release_adopted()];
        if v4 || v6 {
            self.clear(maps, applied);
        }
        v4 || v6
    }

    fn apply_node(&mut self, maps: &mut impl MapStore, applied: &mut Applied) {
        let Some(plan) = self.node.as_ref().filter(|_| self.node_pending) else { return };
        let written = node::write(maps, plan);
        self.node_pending = written.is_err();
        applied.rows += *written.as_ref().unwrap_or(&0);
        self.node_failure = written.err();
    }

    /// Writes a chunk in one go, or, when that fails, each service of it by itself: then
    /// only those whose own rows fail stay behind. For want of room it first waits for what
    /// has been given back and may still be read, then lets go what was kept, then takes what an earlier agent has left.
    fn apply_chunk(
        &mut self,
        maps: &mut impl MapStore,
        mut chunk: Vec<(ObjectName, Waiting)>,
        applied: &mut Applied,
    ) {
        for (service, waiting, why) in split_off_too_large(maps, &mut chunk) {
            self.refuse(maps, (service, waiting), why, applied);
        }
        match self.write_chunk(maps, &chunk, applied) {
            Ok(keeps) => self.written(chunk, keeps, applied),
            Err(MapError::Full { .. }) if self.rests() => match self.settle(maps) {
                Ok(()) => self.apply_chunk(maps, chunk, applied),
                Err(e) => self.postpone(chunk, e),
            },
            Err(MapError::Full { .. }) if self.give_way(maps, applied) => {
                self.apply_chunk(maps, chunk, applied)
            }
            Err(MapError::Full { .. }) if self.release_adopted(maps, applied) => {
                self.apply_chunk(maps, chunk, applied);
            }
            Err(e) if matches!(e, MapError::Fatal { .. }) => self.postpone(chunk, e),
            Err(e) if chunk.len() == 1 => {
                let one = chunk.swap_remove(0);
                match e {
                    MapError::Full { .. } => self.refuse(maps, one, e, applied),
                    _ => self.postpone(vec![one], e),
                }
            }
            Err(_) => chunk.into_iter().for_each(|one| self.apply_chunk(maps, vec![one], applied)),
        }
    }

    fn postpone(&mut self, chunk: Vec<(ObjectName, Waiting)>, why: MapError) {
        let first = chunk.first().map(|(service, _)| service.clone());
        self.failures.extend(first.map(|service| (service, why)));
        self.pending.extend(chunk);
    }

    /// True if [`Reconciler::settle`] makes something available.
    fn rests(&self) -> bool {
        self.v4.rests() || self.v6.rests() || self.services.resting() > 0
    }

    /// Makes ids and slots available that were given back. Only when there is no other room: it takes the time
    /// that the kernel needs to let all programs end.
    fn settle(&mut self, maps: &mut impl MapStore) -> Result<(), MapError> {
        maps.wait_for_programs()?;
        self.v4.settle();
        self.v6.settle();
        self.services.settle();
        Ok(())
    }

    /// True if frontends were kept.
    fn write_chunk(
        &mut self,
        maps: &mut impl MapStore,
        services: &[(ObjectName, Waiting)],
        applied: &mut Applied,
    ) -> Result<bool, MapError> {
        let mut chunk = Chunk::default();
        let written = self
            .stage(services, &mut chunk)
            .and_then(|()| self.ensure_room(maps, &chunk))
            .and_then(|()| self.write_staged(maps, &chunk, &mut applied.rows));
        if let Err(e) = written {
            self.v4.unstage(chunk.v4);
            self.v6.unstage(chunk.v6);
            return Err(e);
        }
        let keeps = [self.v4.commit(chunk.v4), self.v6.commit(chunk.v6)];
        // From here on everything is served as planned; leftovers are taken up by the next apply.
        let ids = services.iter().flat_map(|(service, _)| self.services.ids_of(service));
        self.departed.extend(ids.filter(|id| !self.v4.has(**id) && !self.v6.has(**id)));
        self.clear(maps, applied);
        Ok(keeps.contains(&true))
    }

    fn stage(&mut self, services: &[(ObjectName, Waiting)], chunk: &mut Chunk) -> Result<(), MapError> {
        for (service, plans) in services {
            let mut ids: Vec<_> = self.services.ids_of(service).to_vec();
            let mut by_id: BTreeMap<(u32, Family), &PortPlan> = BTreeMap::new();
            for plan in plans.iter().filter(|plan| !plan.frontends.is_empty()) {
                let id = self.services.id(&plan.name, plan.protocol)?;
                by_id.insert((id, plan.family), plan);
                ids.push(id);
                chunk.live.push(id);
            }
            ids.sort_unstable();
            ids.dedup();
            for id in ids {
                chunk.v4.push(self.v4.stage(id, by_id.get(&(id, Family::V4)).copied())?);
                chunk.v6.push(self.v6.stage(id, by_id.get(&(id, Family::V6)).copied())?);
            }
        }
        Ok(())
    }

    /// The order that is safe at every instant: nothing is named before it is written, and
    /// nothing is cleared while it is named.
    fn write_staged(
        &mut self,
        maps: &mut impl MapStore,
        chunk: &Chunk,
        rows: &mut usize,
    ) -> Result<(), MapError> {
        let Chunk { v4, v6, live } = chunk;
        *rows += self.v4.delete_frontends(maps.v4(), v4)?;
        *rows += self.v6.delete_frontends(maps.v6(), v6)?;
        *rows += self.write_services(maps, live)?;
        *rows += self.v4.write_backends(maps.v4(), v4)?;
        *rows += self.v6.write_backends(maps.v6(), v6)?;
        *rows += self.v4.write_slots(maps.v4(), v4.iter().map(|port| port.service))?;
        *rows += self.v6.write_slots(maps.v6(), v6.iter().map(|port| port.service))?;
        *rows += self.v4.write_source_ranges(maps.v4(), v4)?;
        *rows += self.v6.write_source_ranges(maps.v6(), v6)?;
        *rows += self.v4.write_frontends(maps.v4(), v4)?;
        *rows += self.v6.write_frontends(maps.v6(), v6)?;
        *rows += self.v4.delete_source_ranges(maps.v4(), v4)?;
        *rows += self.v6.delete_source_ranges(maps.v6(), v6)?;
        Ok(())
    }

    fn write_services(&mut self, maps: &mut impl MapStore, ids: &[u32]) -> Result<usize, MapError> {
        let mut rows = self.services.unwritten(ids);
        rows.sort_unstable_by_key(|(id, _)| *id);
        rows.dedup_by_key(|(id, _)| *id);
        if !rows.is_empty() {
            maps.put_services(&rows)?;
        }
        self.services.set_written(rows.iter().map(|(id, _)| *id), true);
        Ok(rows.len())
    }

    /// Clears rows that nothing names any more.
    fn clear(&mut self, maps: &mut impl MapStore, applied: &mut Applied) {
        let cleared = self.try_clear(maps);
        applied.rows += *cleared.as_ref().unwrap_or(&0);
        self.cleanup_failure = cleared.err();
    }

    fn try_clear(&mut self, maps: &mut impl MapStore) -> Result<usize, MapError> {
        let count = self.v4.take_out_backends(maps.v4())? + self.v6.take_out_backends(maps.v6())?;
        self.departed.retain(|id| !self.v4.has(*id) && !self.v6.has(*id));
        if !self.departed.is_empty() {
            // A service that comes back before this succeeds has to write its row anew.
            self.services.set_written(self.departed.iter().copied(), false);
            maps.delete_services(&self.departed)?;
        }
        let departed = std::mem::take(&mut self.departed);
        departed.iter().for_each(|id| self.services.forget(*id));
        Ok(count + departed.len())
    }

    /// Services that wait for a write that should have worked, each with the reason if it is known.
    pub fn pending(&self) -> impl Iterator<Item = (&ObjectName, Option<&MapError>)> {
        self.pending.keys().map(|service| (service, self.failures.get(service)))
    }

    /// Number of services, and of other things, that wait for a write that should have worked.
    pub fn pending_count(&self) -> usize {
        self.pending.len() + usize::from(self.node_pending) + usize::from(self.cleanup_failure.is_some())
    }

    /// True while rows of a family wait for a write that should have worked. A service of both families is written
    /// as a whole, so it waits in both. One that finds no room is its own affair.
    pub fn is_pending(&self, family: Family) -> bool {
        let holds = |service: &ObjectName| {
            self.services.ids_of(service).iter().any(|id| match family {
                Family::V4 => self.v4.has(*id),
                Family::V6 => self.v6.has(*id),
            })
        };
        let wants = |plans: &[PortPlan]| plans.iter().any(|plan| plan.family == family);
        let mut pending = self.pending.iter();
        self.node_pending
            || self.cleanup_failure.is_some()
            || pending.any(|(service, plans)| wants(plans) || holds(service))
    }

    /// Frontends and backends of both families that have a row.
    pub fn counts(&self) -> (usize, usize) {
        (self.v4.frontends.len() + self.v6.frontends.len(), self.v4.backends.len() + self.v6.backends.len())
    }

    /// Source ports for masquerading towards each backend.
    pub(super) fn snat_port_count(&self) -> usize {
        self.node.as_ref().map_or(0, |node| node.settings.snat_port_count.into())
    }

    /// Why rows that belong to no single service wait for a write.
    pub fn common_failures(&self) -> impl Iterator<Item = &MapError> {
        self.node_failure.iter().chain(&self.cleanup_failure)
    }
}

#[cfg(test)]
mod tests;

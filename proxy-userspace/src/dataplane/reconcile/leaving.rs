//! Frontends that a Service gives up stay until everything else is written: an address that passes to a Service that is
//! written later, or whose write fails, leads where it led until then.

use std::collections::HashSet;

use proxy_common::maps::frontends::FrontendKey;

use super::{Applied, Reconciler, Waiting};
use crate::{
    dataplane::{MapAddr, MapStore, encode, family::Keep},
    model::{Family, ObjectName},
    plan::PortPlan,
};

impl Reconciler {
    /// To be called before anything is written. Of a frontend whose write has failed, nobody knows whose rows it names,
    /// so it stays only if it is still wanted.
    pub(super) fn keep_what_may_be_taken_over(&mut self) {
        self.keep(true);
    }

    fn keep(&mut self, certain: bool) {
        let pending = || self.pending.values().flatten();
        self.v4.keep = Keep { certain, wanted: wanted(pending(), Family::V4) };
        self.v6.keep = Keep { certain, wanted: wanted(pending(), Family::V6) };
    }

    /// Notes Services that are written, and those of them that have kept something, if any has.
    pub(super) fn written(&mut self, chunk: Vec<(ObjectName, Waiting)>, keeps: bool, applied: &mut Applied) {
        for (service, waiting) in chunk {
            self.failures.remove(&service);
            if keeps && self.keeps_more(&service, &waiting) {
                self.leaving.push((service, waiting));
            } else {
                applied.services += 1;
            }
        }
    }

    /// True if frontends of a Service are left that it does not want.
    fn keeps_more(&self, service: &ObjectName, plans: &[PortPlan]) -> bool {
        let (v4, v6) = (wanted(plans, Family::V4), wanted(plans, Family::V6));
        self.services.ids_of(service).iter().any(|id| {
            self.v4.own_keys(*id).any(|key| !v4.contains(&key))
                || self.v6.own_keys(*id).any(|key| !v6.contains(&key))
        })
    }

    /// Deletes what was kept and nobody has taken over. A Service whose write failed may still do so: what it wants
    /// stays, and whoever has it waits with it.
    pub(super) fn let_go(&mut self, maps: &mut impl MapStore, applied: &mut Applied) {
        self.keep(false);
        let mut leaving = std::mem::take(&mut self.leaving);
        while !leaving.is_empty() {
            let rest = leaving.split_off(self.chunk.min(leaving.len()));
            self.apply_chunk(maps, std::mem::replace(&mut leaving, rest), applied);
        }
        self.pending.extend(std::mem::take(&mut self.leaving));
        (self.v4.keep, self.v6.keep) = (Keep::default(), Keep::default());
    }

    /// The same when there is no room for others: at once, and whoever may want it. False if there is nothing.
    pub(super) fn give_way(&mut self, maps: &mut impl MapStore, applied: &mut Applied) -> bool {
        let leaving = std::mem::take(&mut self.leaving);
        if leaving.is_empty() {
            return false;
        }
        let keep = (std::mem::take(&mut self.v4.keep), std::mem::take(&mut self.v6.keep));
        self.apply_chunk(maps, leaving, applied);
        (self.v4.keep, self.v6.keep) = keep;
        true
    }
}

/// Frontends of these plans.
fn wanted<'a, A: MapAddr>(
    plans: impl IntoIterator<Item = &'a PortPlan>,
    family: Family,
) -> HashSet<FrontendKey<A>> {
    let plans = plans.into_iter().filter(|plan| plan.family == family);
    plans.flat_map(|plan| &plan.frontends).filter_map(encode::frontend_key::<A>).collect()
}

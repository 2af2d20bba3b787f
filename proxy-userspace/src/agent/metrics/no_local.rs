//! Service ports whose policy keeps clients to endpoints of this node, where there are none.

use std::collections::BTreeMap;

use crate::{
    model::{Family, ObjectName},
    plan::PortPlan,
};

/// Their numbers, kept up to date plan by plan. By family, then internal and external policy.
#[derive(Debug, Default)]
pub(in crate::agent) struct NoLocal {
    services: BTreeMap<ObjectName, [[usize; 2]; 2]>,
}

impl NoLocal {
    /// Takes in the plans of a service; one that is gone has none.
    pub(in crate::agent) fn set(&mut self, service: &ObjectName, plans: &[PortPlan]) {
        let mut counts = [[0; 2]; 2];
        for plan in plans {
            let lacking = plan.lacks_local();
            counts[plan.family as usize][0] += usize::from(lacking.internal);
            counts[plan.family as usize][1] += usize::from(lacking.external);
        }
        if counts == [[0; 2]; 2] {
            self.services.remove(service);
        } else {
            self.services.insert(service.clone(), counts);
        }
    }

    pub(super) fn counts(&self) -> [[usize; 2]; 2] {
        let mut sum = [[0; 2]; 2];
        for counts in self.services.values() {
            for family in Family::ALL.map(|family| family as usize) {
                for (sum, count) in sum[family].iter_mut().zip(counts[family]) {
                    *sum += count;
                }
            }
        }
        sum
    }
}

//! From batches to written rows: model, plan and reconciler in one hand. No clock and no
//! sockets; the maps are passed in, so that tests run it on memory.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tracing::{debug, info, warn};

use super::metrics::{
    NoLocal,
    waiting::{self, Changes, Waiting},
};
use crate::{
    dataplane::{Applied, MapError, MapStore, Pressure, Reconciler, Repairs, Survey, Verdict},
    health,
    model::{self, Change, Conflict, Dirty, Family, HealthCheck, ObjectName, State},
    plan,
    watch::{Batch, WatchMetrics},
};

/// Services whose failure is told; the number of all is told with them.
const FAILURES_TOLD: usize = 3;

/// What is wanted, and what of it is written.
pub(super) struct Engine {
    state: State,
    config: model::Config,
    host: plan::Host,
    reconciler: Reconciler,
    /// Of the last batch taken in.
    revision: u64,
    /// The first batch was taken in: what exists is known.
    listed: bool,
    /// Rows of services that are gone since the earlier agent may be left.
    unpruned: bool,
    health_checks: BTreeMap<ObjectName, HealthCheck>,
    /// Health ports were not asked for since something changed.
    health_changed: bool,
    /// The pods that want no socket LB may be others than those last taken.
    pods_changed: bool,
    waiting: Waiting,
    no_local: NoLocal,
    /// NodePorts among the ports of masquerading, to say so once.
    misplaced: BTreeSet<u16>,
}

/// Result of one round of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Synced {
    /// Rows written or deleted.
    pub(super) rows: usize,
    /// Services, and other things, that still wait for a write.
    pub(super) pending: usize,
}

impl Engine {
    /// Nothing wanted yet. `reconciler` knows what the maps hold.
    pub(super) fn new(
        node_name: Arc<str>,
        config: model::Config,
        host: plan::Host,
        reconciler: Reconciler,
    ) -> Self {
        let state = State::new(node_name);
        Self {
            state,
            config,
            host,
            reconciler,
            revision: 0,
            listed: false,
            unpruned: false,
            health_checks: BTreeMap::new(),
            health_changed: false,
            pods_changed: false,
            waiting: Waiting::default(),
            no_local: NoLocal::default(),
            misplaced: BTreeSet::new(),
        }
    }

    /// True once the first batch was taken in. Nothing may be written before.
    pub(super) fn is_listed(&self) -> bool {
        self.listed
    }

    /// The Node object, as it was last seen.
    pub(super) fn node(&self) -> Option<&model::Node> {
        self.state.node()
    }

    /// Addresses of the Node object.
    pub(super) fn node_addresses(&self) -> &[IpAddr] {
        self.state.node().map_or(&[], |node| &node.addresses)
    }

    /// UIDs of the pods that want no socket LB, if they may be others than before.
    pub(super) fn take_exempt_pods(&mut self) -> Option<BTreeSet<Arc<str>>> {
        std::mem::take(&mut self.pods_changed).then(|| self.state.exempt_pods())
    }

    /// Takes in what a source reports.
    pub(super) fn absorb(&mut self, batch: Batch) {
        let mut dirty = Dirty::default();
        let arrived = (!batch.initial).then_some(batch.arrived);
        for mut change in batch.changes {
            if let (Change::Node(node), Some(primary)) = (&mut change, self.config.primary) {
                node.prefer(primary);
            }
            let kind = waiting::Kind::of(&change, |slice| batch.triggers.get(slice).copied());
            let stale = self.state.apply(change);
            self.waiting.note(kind, &stale, arrived);
            dirty.merge(stale);
        }
        self.revision = batch.revision;
        if batch.initial {
            self.listed = true;
            self.unpruned = true;
            dirty.node = true;
            dirty.pods = true;
            if self.state.node().is_none() {
                let node = &**self.state.node_name();
                warn!(node, "this node is not among the Node objects; NodePorts have no address until it is");
            }
        }
        self.pods_changed |= dirty.pods;
        self.plan(&dirty);
    }

    /// Writes to other maps from here on; `reconciler` knows what they hold.
    pub(super) fn readopt(&mut self, reconciler: Reconciler) {
        self.reconciler = reconciler;
        self.unpruned = self.listed;
        if self.listed {
            self.plan(&self.state.everything());
        }
    }

    /// Takes in the addresses the host owns. True if that may change rows.
    pub(super) fn set_host_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        if self.host.addresses == addresses {
            return false;
        }
        self.host.addresses = addresses;
        if self.listed {
            self.plan(&Dirty { node: true, ..Dirty::default() });
        }
        self.listed
    }

    /// Plans everything anew by another configuration.
    pub(super) fn set_config(&mut self, config: model::Config) {
        self.config = config;
        if self.listed {
            self.plan(&self.state.everything());
        }
    }

    /// Says how far services are taken over from kube-proxy.
    pub(super) fn set_takeover(&mut self, takeover: plan::Takeover) {
        if self.host.takeover != takeover {
            self.host.takeover = takeover;
            self.plan(&Dirty { node: true, ..Dirty::default() });
        }
    }

    fn plan(&mut self, dirty: &Dirty) {
        for conflict in &dirty.conflicts {
            let Conflict { claim, winner, loser } = conflict;
            warn!(%claim, %winner, %loser, "an address is claimed twice; the older service has it");
        }
        if dirty.node {
            self.reconciler.set_node(plan::node(&self.state, &self.config, &self.host));
        }
        for service in &dirty.services {
            self.check_node_ports(service);
            let plans = plan::build(&self.state, service, &self.config);
            self.no_local.set(service, &plans);
            self.reconciler.update(service.clone(), plans);
            match self.state.health_check(service) {
                Some(check) => drop(self.health_checks.insert(service.clone(), check)),
                None => drop(self.health_checks.remove(service)),
            }
        }
        self.health_changed |= !dirty.is_empty();
    }

    fn check_node_ports(&mut self, service: &ObjectName) {
        let (first, last) = (self.config.snat_port_first, self.config.snat_port_last);
        let ports = self.state.service(service).into_iter().flat_map(|service| &service.ports);
        for port in ports.filter_map(|port| port.node_port).filter(|port| (first..=last).contains(port)) {
            if self.misplaced.insert(port) {
                warn!(%service, port, "a NodePort lies in snatPortRange: late replies would reach it (nodePortRange)");
            }
        }
    }

    /// The health ports of services, if they may have changed since the last call.
    pub(super) fn health_ports(&mut self) -> Option<health::Ports> {
        let addresses = &self.config.node_port_addresses;
        std::mem::take(&mut self.health_changed).then(|| {
            health::ports(self.health_checks.values(), addresses, self.state.node(), &self.host.addresses)
        })
    }

    /// False when the node is about to go, or gone. Unknown, it gets the benefit of the doubt.
    pub(super) fn node_is_eligible(&self) -> bool {
        !self.listed || self.state.node().is_some_and(model::Node::is_staying)
    }

    /// True while rows of a family wait for a write.
    pub(super) fn is_pending(&self, family: Family) -> bool {
        self.reconciler.is_pending(family)
    }

    /// Writes what is pending. The first round ends with the removal of what an earlier
    /// agent left and nobody wants: only then is everything else in place.
    pub(super) fn sync(&mut self, maps: &mut impl MapStore) -> Synced {
        let mut rows = self.apply(maps).rows;
        if std::mem::take(&mut self.unpruned) {
            self.reconciler.prune();
            rows += self.apply(maps).rows;
        }
        Synced { rows, pending: self.reconciler.pending_count() }
    }

    fn apply(&mut self, maps: &mut impl MapStore) -> Applied {
        let applied = self.reconciler.apply(maps);
        debug!(?applied, "applied");
        applied
    }

    /// Changes that no longer wait for rows.
    pub(super) fn take_written(&mut self) -> Vec<Changes> {
        let pending: HashSet<_> = self.reconciler.pending().map(|(service, _)| service).collect();
        self.waiting.written(|service| pending.contains(service))
    }

    /// Changes that came in, and those that wait.
    pub(super) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Service ports that lack endpoints on this node.
    pub(super) fn no_local(&self) -> &NoLocal {
        &self.no_local
    }

    /// Compares everything with the kernel and repairs what others have changed.
    pub(super) fn full_sync(&mut self, maps: &mut impl MapStore) -> Result<Repairs, MapError> {
        self.reconciler.full_sync(maps)
    }

    /// Knows what ids stand for.
    pub(super) fn reconciler(&self) -> &Reconciler {
        &self.reconciler
    }

    /// Says which of the ways that flows go are no longer allowed.
    pub(super) fn judge(&self, survey: &Survey) -> Verdict {
        self.reconciler.judge(survey)
    }

    /// How near the datapath is to its limits.
    pub(super) fn pressure(&self, maps: &mut impl MapStore, survey: &Survey) -> Pressure {
        self.reconciler.pressure(maps, survey)
    }

    /// Says why writes failed: the first reasons, and how many there are.
    pub(super) fn report_failures(&self, retry: Duration) {
        let pending = self.reconciler.pending_count();
        for error in self.reconciler.common_failures() {
            warn!(%error, pending, ?retry, "cannot write rows of the node; trying again");
        }
        let failures = self.reconciler.pending().filter_map(|(service, error)| Some((service, error?)));
        for (service, error) in failures.take(FAILURES_TOLD) {
            warn!(%service, %error, pending, ?retry, "cannot write rows of a service; trying again");
        }
    }

    /// Says that the kernel holds what is wanted. Tests and people wait for this line.
    pub(super) fn report_in_sync(&self, synced: Synced, took: Duration, source: &WatchMetrics) {
        let (revision, services) = (self.revision, self.state.services().count());
        let (frontends, backends) = self.reconciler.counts();
        let (writes, pending, duration_us) = (synced.rows, synced.pending, took.as_micros() as u64);
        let (rejected, unreadable) = (source.rejected_total(), source.files_failed());
        macro_rules! say {
            ($level:ident) => {
                $level!(
                    target: "shunt::agent",
                    revision, services, frontends, backends, writes, pending, duration_us,
                    rejected, unreadable, "in sync"
                )
            };
        }
        if writes > 0 { say!(info) } else { say!(debug) }
    }
}

#[cfg(test)]
mod tests;

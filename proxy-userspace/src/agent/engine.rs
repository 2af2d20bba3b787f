//! From batches to written rows: model, plan and reconciler in one hand. No clock and no
//! sockets; the maps are passed in, so that tests run it on memory.

mod report;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
    sync::Arc,
};

use tracing::{debug, info, warn};

use super::metrics::{
    NoLocal,
    waiting::{self, Changes, Waiting},
};
use crate::{
    dataplane::{Applied, MapError, MapStore, Pressure, Reconciler, Repairs, Survey, Verdict},
    health,
    model::{self, Change, Conflict, Dirty, Exempt, Family, HealthCheck, ObjectName, State},
    plan,
    watch::{Batch, Versions},
};

/// What is wanted, and what of it is written.
pub(super) struct Engine {
    state: State,
    config: model::Config,
    host: plan::Host,
    reconciler: Reconciler,
    /// Services to be planned anew in the next round of writes.
    stale: BTreeSet<ObjectName>,
    /// Of the last batch taken in.
    revision: u64,
    versions: Versions,
    /// The first lists were taken in: what exists is known.
    listed: bool,
    /// Rows of services that are gone since the earlier agent may be left.
    unpruned: bool,
    /// A missing Node object means that the node is gone.
    needs_node: bool,
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
    /// Services for which there is no room.
    pub(super) refused: usize,
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
            stale: BTreeSet::new(),
            revision: 0,
            versions: Versions::default(),
            listed: false,
            unpruned: false,
            needs_node: true,
            health_checks: BTreeMap::new(),
            health_changed: false,
            pods_changed: false,
            waiting: Waiting::default(),
            no_local: NoLocal::default(),
            misplaced: BTreeSet::new(),
        }
    }

    /// For a machine without a cluster: it is well without a Node object, as long as there never has been one.
    pub(super) fn stand_alone(mut self) -> Self {
        self.needs_node = false;
        self
    }

    /// True once the first lists were taken in. Nothing may be written before.
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

    /// The pods that get no socket LB, if they are known and may be others than before.
    pub(super) fn take_exempt_pods(&mut self) -> Option<Exempt> {
        std::mem::take(&mut self.pods_changed).then(|| self.state.exempt_pods()).flatten()
    }

    /// Takes in what a source reports.
    pub(super) fn absorb(&mut self, batch: Batch) {
        let mut dirty = self.state.set_unknown(batch.unknown);
        let arrived = self.listed.then_some(batch.arrived);
        for mut change in batch.changes {
            if let (Change::Node(node), Some(primary)) = (&mut change, self.config.primary) {
                node.prefer(primary);
            }
            let kind = waiting::Kind::of(&change, |slice| batch.triggers.get(slice).copied());
            let stale = self.state.apply(change);
            self.waiting.note(kind, &stale, arrived);
            dirty.merge(stale);
        }
        (self.revision, self.versions) = (batch.revision, batch.versions);
        if batch.initial {
            self.listed = true;
            self.unpruned = true;
            dirty.node = true;
            dirty.pods = true;
            if self.state.node().is_none() {
                self.tell_of_missing_node();
            }
        }
        self.needs_node |= self.state.node().is_some();
        self.pods_changed |= dirty.pods;
        self.mark(dirty);
    }

    fn tell_of_missing_node(&self) {
        let node = &**self.state.node_name();
        if self.needs_node {
            warn!(node, "this node is not among the Node objects; NodePorts have no address until it is");
        } else {
            info!(
                node,
                "there is no Node object of this name: NodePorts have no address, and the node has no zone"
            );
        }
    }

    /// Writes to other maps from here on; `reconciler` knows what they hold.
    pub(super) fn readopt(&mut self, reconciler: Reconciler) {
        self.reconciler = reconciler;
        self.unpruned = self.listed;
        if self.listed {
            self.mark(self.state.everything());
        }
    }

    /// Takes in the addresses the host owns. True if that may change rows.
    pub(super) fn set_host_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        if self.host.addresses == addresses {
            return false;
        }
        self.host.addresses = addresses;
        if self.listed {
            self.mark(Dirty { node: true, ..Dirty::default() });
        }
        self.listed
    }

    /// Plans everything anew by another configuration.
    pub(super) fn set_config(&mut self, config: model::Config) {
        self.config = config;
        if self.listed {
            self.mark(self.state.everything());
        }
    }

    /// Says how far services are taken over from kube-proxy.
    pub(super) fn set_takeover(&mut self, takeover: plan::Takeover) {
        if self.host.takeover != takeover {
            self.host.takeover = takeover;
            self.mark(Dirty { node: true, ..Dirty::default() });
        }
    }

    /// Notes what has to be planned anew. Rows are made when they are to be written.
    fn mark(&mut self, dirty: Dirty) {
        for conflict in &dirty.conflicts {
            let Conflict { claim, winner, loser } = conflict;
            warn!(%claim, %winner, %loser, "an address is claimed twice; the older service has it");
        }
        if dirty.node && self.listed {
            self.reconciler.set_node(plan::node(&self.state, &self.config, &self.host));
        }
        for service in &dirty.services {
            self.check_node_ports(service);
            match self.state.health_check(service) {
                Some(check) => drop(self.health_checks.insert(service.clone(), check)),
                None => drop(self.health_checks.remove(service)),
            }
        }
        self.health_changed |= !dirty.is_empty();
        self.stale.extend(dirty.services);
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
        !self.listed || self.state.node().map_or(!self.needs_node, model::Node::is_staying)
    }

    /// True while rows of a family wait for a write.
    pub(super) fn is_pending(&self, family: Family) -> bool {
        self.reconciler.is_pending(family)
    }

    /// The rows that there will be.
    pub(super) fn needs(&self) -> plan::Needs {
        plan::needs(&self.state, &self.config)
    }

    /// Writes what is pending. The first round ends with the removal of what an earlier
    /// agent left and nobody wants: only then is everything else in place.
    pub(super) fn sync(&mut self, maps: &mut impl MapStore) -> Synced {
        let mut rows = self.apply(maps).rows;
        if std::mem::take(&mut self.unpruned) {
            self.reconciler.prune();
            rows += self.apply(maps).rows;
        }
        self.synced(rows)
    }

    fn synced(&self, rows: usize) -> Synced {
        Synced { rows, pending: self.reconciler.pending_count(), refused: self.reconciler.refused_count() }
    }

    /// Tries again to find room for Services that had none.
    pub(super) fn retry_refused(&mut self, maps: &mut impl MapStore) -> Synced {
        let rows = self.reconciler.retry_refused(maps).rows;
        self.synced(rows)
    }

    /// True if Services that had no room may find some now.
    pub(super) fn may_have_room(&self) -> bool {
        self.reconciler.may_have_room()
    }

    /// Services for which there is no room, each with its UID, if it is known, and why.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&ObjectName, &str, &MapError)> {
        let uid = |service| self.state.service(service).map_or("", |service| &*service.uid);
        self.reconciler.refused().map(move |(service, why)| (service, uid(service), why))
    }

    fn apply(&mut self, maps: &mut impl MapStore) -> Applied {
        let Self { state, config, no_local, reconciler, .. } = self;
        let plans = std::mem::take(&mut self.stale).into_iter().map(|service| {
            let plans = plan::build(state, &service, config);
            no_local.set(&service, &plans);
            (service, plans)
        });
        let applied = reconciler.apply_all(maps, plans);
        debug!(?applied, "applied");
        applied
    }

    /// Changes that no longer wait for rows.
    pub(super) fn take_written(&mut self) -> Vec<Changes> {
        let pending = self.reconciler.pending().map(|(service, _)| service);
        let pending: HashSet<_> =
            pending.chain(self.reconciler.refused().map(|(service, _)| service)).collect();
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
}

#[cfg(test)]
mod tests;

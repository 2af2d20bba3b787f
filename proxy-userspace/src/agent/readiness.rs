//! When pods may come to this node: it has a taint from its start on (kubelet's
//! `--register-with-taints`), which goes when services work here for the first time.
//!
//! Level-triggered: a taint that comes back, with a node that registers anew, goes again.

use crate::{model::Node, watch::kube::NodeTaint};

/// Whether services work here, and the taint that says they don't.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    taint: Option<NodeTaint>,
    written: bool,
    attached: bool,
}

impl Readiness {
    /// Nothing works yet. Without a taint nobody is told when it does.
    pub(super) fn new(taint: Option<NodeTaint>) -> Self {
        Self { taint, ..Self::default() }
    }

    /// Notes whether a round of writes has left nothing pending. That it did once is enough:
    /// failures from then on are for `/healthz`.
    pub(super) fn wrote(&mut self, all: bool, node: Option<&Node>) {
        self.written |= all;
        self.look(node);
    }

    /// Notes whether the programs are at every edge.
    pub(super) fn attached(&mut self, all: bool, node: Option<&Node>) {
        self.attached |= all;
        self.look(node);
    }

    /// Asks for the removal of a taint that the node has and should not.
    pub(super) fn look(&self, node: Option<&Node>) {
        if let (true, Some(taint), Some(node)) = (self.written && self.attached, &self.taint, node)
            && node.taints.contains(taint.taint())
        {
            taint.remove();
        }
    }
}

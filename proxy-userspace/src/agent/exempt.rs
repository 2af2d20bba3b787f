//! Pods that want no socket LB: from UIDs to cgroups to rows.
//!
//! A pod is known before kubelet makes its cgroup, and its containers start only after
//! its network is there: looking often enough finds the cgroup in between.

use std::time::Duration;

use anyhow::Result;
use tracing::{info, warn};

use crate::{
    kernel::{Datapath, KernelMaps},
    model::Exempt,
};

/// Time between looks while a pod has no cgroup: one that has just been bound to this
/// node, or one that has ended and was not deleted.
const PAUSE: Duration = Duration::from_millis(250);

/// The pods, and how it went.
#[derive(Debug, Default)]
pub(super) struct Exemptions {
    /// Nothing before they are known: the rows of an earlier agent stay.
    pods: Option<Exempt>,
    failing: bool,
}

impl Exemptions {
    /// Wants these pods from the next [`Exemptions::write`] on.
    pub(super) fn set(&mut self, pods: Exempt) {
        self.pods = Some(pods);
    }

    /// Makes the rows those of the pods. Returns how long to wait until the next look, if
    /// one is needed.
    pub(super) fn write(&mut self, datapath: &Datapath, maps: &mut KernelMaps) -> Option<Duration> {
        match write(datapath, maps, self.pods.as_ref()?) {
            Ok(missing) => {
                self.failing = false;
                (missing > 0).then_some(PAUSE)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    warn!(
                        error = format!("{error:#}"),
                        "pods without socket LB may get it for now; trying again"
                    );
                }
                Some(PAUSE)
            }
        }
    }
}

/// Returns how many pods that want no socket LB have no cgroup yet.
fn write(datapath: &Datapath, maps: &mut KernelMaps, Exempt { pods, undecided }: &Exempt) -> Result<usize> {
    let all = pods | undecided;
    let found = if all.is_empty() { Default::default() } else { datapath.pod_cgroups(&all)? };
    let (wanted, undecided): (Vec<_>, Vec<_>) = found.into_iter().partition(|(uid, _)| pods.contains(uid));
    let missing = pods.len() - wanted.len();
    let cgroups = |pods: Vec<_>| pods.into_iter().map(|(_, cgroup)| cgroup).collect();
    if maps.replace_exempt(&cgroups(wanted), &cgroups(undecided))? {
        info!(pods = pods.len() - missing, missing, "pods without socket LB");
    }
    Ok(missing)
}

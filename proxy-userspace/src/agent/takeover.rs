//! Takes services over from kube-proxy without open connections noticing: those that netfilter
//! translates are left to it until they end (`dataplane/left.rs` says why).
//!
//! Order matters, and netfilter's rules serve whatever the programs pass on:
//!
//! 1. Rows are written for the connections of this moment. While the programs are being attached
//!    they take no others (`ATTACHING`): a reply might enter by a device that has none yet.
//! 2. They are attached. What opens a TCP connection is theirs from now on; what is met in the
//!    middle is netfilter's (`TAKEOVER`). Rows are written for all that began in step 1, and netfilter
//!    gets no more of TCP.
//! 3. Everything new is theirs. Rows are written for datagrams that went by kube-proxy's rules until
//!    now.

use anyhow::{Context, Result};
use tracing::{debug, info, warn};

use crate::{
    clock::monotonic_nanos,
    dataplane::{Left, leave},
    kernel::{self, KernelMaps},
};

/// True if rules of kube-proxy are in force here.
pub(super) fn kube_proxy_rules() -> bool {
    let rules = kernel::kube_proxy_rules();
    if let Err(error) = &rules {
        debug!(%error, "cannot look for rules of kube-proxy");
    }
    let found = rules.is_ok_and(|rules| !rules.is_empty()) || !kernel::legacy_rules().is_empty();
    if found {
        info!("kube-proxy's rules are in force; connections that it began go on by them");
    }
    found
}

/// Leaves to netfilter what it translates now.
pub(super) fn leave_connections(maps: &mut KernelMaps) {
    match try_leave(maps) {
        Ok(left) if left.flows > 0 => {
            info!(connections = left.flows, rows = left.added, "left to netfilter until they end");
        }
        Ok(_) => {}
        Err(error) => {
            warn!(error = format!("{error:#}"), "connections that netfilter translates may break");
        }
    }
}

fn try_leave(maps: &mut KernelMaps) -> Result<Left> {
    let flows = kernel::nat_flows()?;
    let left = leave(maps, &flows, monotonic_nanos().context("cannot read the clock")?)?;
    if left.flows > 0 {
        // Otherwise it stops translating them with the last of kube-proxy's rules.
        kernel::keep_translating()?;
    }
    Ok(left)
}

/// Follows the connections that are left to netfilter.
#[derive(Debug)]
pub(super) struct Follower {
    /// Netfilter is being kept at work, or an earlier agent may have begun to.
    keeping: bool,
}

impl Default for Follower {
    fn default() -> Self {
        Self { keeping: true }
    }
}

impl Follower {
    /// Forgets those that are over. `rows` is how many rows there are for them.
    pub(super) fn follow(&mut self, maps: &mut KernelMaps, rows: usize) {
        if rows == 0 && !self.keeping {
            return;
        }
        match try_leave(maps) {
            Ok(left) if left.flows > 0 => {
                self.keeping = true;
                debug!(?left, "connections are left to netfilter");
            }
            Ok(_) => self.stop(),
            Err(error) => debug!(error = format!("{error:#}"), "cannot follow what is left to netfilter"),
        }
    }

    fn stop(&mut self) {
        match kernel::stop_translating() {
            Ok(was_there) => {
                self.keeping = false;
                if was_there {
                    info!("no connection is left to netfilter any more");
                }
            }
            Err(error) => debug!(%error, "trying again"),
        }
    }
}

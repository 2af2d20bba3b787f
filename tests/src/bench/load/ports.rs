//! Source ports over time.
//!
//! Connections go through a NodePort of the first node to a single backend on the second, and are
//! masqueraded: one connection after the other, for minutes, takes a source port towards the same
//! destination. There are 28,976 of them by default, used up within seconds, so that from then on each
//! connection needs one that an ended connection has had.

use anyhow::{Result, ensure};

use crate::bench::{ends::Workload, target::Path};

pub(super) const PATHS: [Path; 1] = [Path::OutsideSingle];
/// Those that take a source port for each request.
const WORKLOADS: [Workload; 2] = [Workload::TcpConnect, Workload::UdpFlow];

pub(super) fn ensure_sensible(workloads: &[Workload]) -> Result<()> {
    for workload in workloads {
        ensure!(WORKLOADS.contains(workload), "--workloads {}: takes no source ports", workload.name());
    }
    Ok(())
}

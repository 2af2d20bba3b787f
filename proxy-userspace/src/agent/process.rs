//! What the configuration wants of the process and of the host beside the datapath.

use std::fs;

use anyhow::{Context, Result};
use tracing::{debug, info, warn};

use crate::{
    config::{Config, Note, Reason, kube_proxy::KubeProxyConfiguration},
    kernel::{Datapath, NfConntrack},
};

/// Says what of the configuration means something else here, or nothing; a line for each.
pub(super) fn tell(notes: &[Note]) {
    for Note { field, reason, meaning } in notes {
        match reason {
            Reason::Mapped => info!(field, meaning, "configured, and has its own meaning here"),
            _ => warn!(field, meaning, "configured, and without effect here"),
        }
    }
}

/// Sets up the process and the host's connection tracking. What the system refuses is no
/// reason to deliver no traffic.
pub(super) fn set_up(config: &Config) {
    let score = config.oom_score_adj;
    if let Err(error) = fs::write("/proc/self/oom_score_adj", score.to_string()) {
        let asked_for = score != KubeProxyConfiguration::default().oom_score_adj;
        if asked_for {
            warn!(%error, score, "cannot set oomScoreAdj: the system may choose the agent when memory is short");
        } else {
            debug!(%error, score, "cannot set oomScoreAdj, whose default takes CAP_SYS_RESOURCE");
        }
    }
    for unset in config.host_conntrack.iter().flat_map(NfConntrack::set) {
        let (path, value, error) = (unset.path.display(), unset.value, &unset.error);
        let is_max = unset.path.ends_with("nf_conntrack_max");
        if is_max && error.kind() == std::io::ErrorKind::PermissionDenied {
            debug!(%path, value, %error, "the table of nf_conntrack is not this namespace's to size");
        } else {
            warn!(%path, value, %error, "cannot set up nf_conntrack of the host; `shunt agent --init-only` can, with privileges");
        }
    }
}

/// `--init-only`: what takes more privileges than the agent needs afterwards.
pub fn init(config: &Config) -> Result<()> {
    set_up(config);
    Datapath::prepare_host(&config.bpffs, super::edges::serves_loopback(config))
        .context("cannot prepare the host")?;
    info!(pins = %config.bpffs.display(), "the host is prepared; the agent can be started");
    Ok(())
}

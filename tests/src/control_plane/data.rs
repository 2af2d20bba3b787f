//! What etcd holds, as files: much content is written once, and copied from then on.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::ControlPlane;

/// Of the data, below the directory of a control plane.
pub(super) const DIRECTORY: &str = "etcd";

/// etcd ends in order within this time.
const ENDS: Duration = Duration::from_secs(60);

impl ControlPlane {
    /// Ends it, and writes what it holds to `directory`, which must not exist.
    pub(super) fn keep_data(&mut self, directory: &Path) -> Result<()> {
        self.stop_api_server();
        self.etcd.signal(Signal::SIGTERM)?;
        self.etcd.wait(ENDS).context("stop etcd")?;
        copy(&self.directory.join(DIRECTORY), directory)
    }
}

/// Shares the blocks where the file system can.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    ensure!(!to.exists(), "{} exists", to.display());
    let mut command = Command::new("cp");
    let status = command.args(["-a", "--reflink=auto", "--sparse=always"]).arg(from).arg(to).status();
    let status = status.context("start cp")?;
    ensure!(status.success(), "cp {} {} ended with {status}", from.display(), to.display());
    Ok(())
}

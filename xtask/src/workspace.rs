//! Where things lie: the source tree and cargo's target directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// The paths that the tasks work with.
pub(crate) struct Workspace {
    /// The top of the source tree.
    pub(crate) root: PathBuf,
    /// Cargo's target directory, wherever configuration or environment put it.
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// Asks cargo, which alone knows every way to move the target directory.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has no parent directory")?;
        let output = Command::new(cargo())
            .args(["metadata", "--no-deps", "--format-version=1", "--manifest-path"])
            .arg(root.join("Cargo.toml"))
            .output()
            .context("cannot run cargo metadata")?;
        anyhow::ensure!(
            output.status.success(),
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let target =
            metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
        Ok(Self { root: root.to_owned(), target: PathBuf::from(target) })
    }

    /// The eBPF object that the agent's build script embeds.
    pub(crate) fn ebpf_object(&self) -> PathBuf {
        self.target.join("ebpf/proxy-ebpf")
    }
}

/// The cargo that runs this task, so that everything is built by one toolchain.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

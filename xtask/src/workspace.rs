//! Where things lie: the source tree and cargo's target directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

/// Something that `cargo test` can build and run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestTarget {
    /// The package it belongs to.
    pub(crate) package: String,
    pub(crate) name: String,
    /// As cargo calls it: `lib`, `bin`, `test`, `example`, `bench`.
    pub(crate) kind: String,
}

/// The paths that the tasks work with, and what there is to test.
pub(crate) struct Workspace {
    /// The top of the source tree.
    pub(crate) root: PathBuf,
    /// Cargo's target directory, wherever configuration or environment put it.
    pub(crate) target: PathBuf,
    /// Of all packages.
    pub(crate) test_targets: Vec<TestTarget>,
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
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let target =
            metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
        let test_targets = test_targets(&metadata).context("cargo metadata names no targets")?;
        Ok(Self { root: root.to_owned(), target: PathBuf::from(target), test_targets })
    }

    /// For what is kept for all checkouts: it outlives the target directory where there is a home to
    /// keep it in.
    pub(crate) fn cache(&self) -> PathBuf {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let user = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        user.map_or_else(|| self.target.clone(), |cache| cache.join("shunt"))
    }

    /// The eBPF object that the agent's build script embeds.
    pub(crate) fn ebpf_object(&self) -> PathBuf {
        self.target.join("ebpf/proxy-ebpf")
    }
}

/// The targets of `cargo metadata` that have tests.
fn test_targets(metadata: &Value) -> Option<Vec<TestTarget>> {
    let mut found = Vec::new();
    for package in metadata["packages"].as_array()? {
        for target in package["targets"].as_array()?.iter().filter(|target| target["test"] == true) {
            let text = |value: &Value| Some(value.as_str()?.to_owned());
            found.push(TestTarget {
                package: text(&package["name"])?,
                name: text(&target["name"])?,
                kind: text(&target["kind"][0])?,
            });
        }
    }
    Some(found)
}

/// The cargo that runs this task, so that everything is built by one toolchain.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

//! Helm and kustomize, by which the cluster tier renders what is under `deploy`: those of
//! `SHUNT_CHART_TOOLS`, else built once from the Go module under `tests/chart-tools`.

use std::path::PathBuf;

use crate::go::{self, Recipe};
use crate::workspace::Workspace;

/// Names the directory of the programs, to us and to the tests.
pub(crate) const VARIABLE: &str = "SHUNT_CHART_TOOLS";

const RECIPE: Recipe = Recipe {
    name: "chart-tools",
    what: "helm and kustomize",
    module: "tests/chart-tools",
    files: &["go.mod", "go.sum"],
    packages: "tool",
    takes: "3 minutes",
};

/// The directory with `helm` and `kustomize`; nothing without a Go, and the tests that need
/// them then say so.
pub(crate) fn find_or_build(workspace: &Workspace) -> anyhow::Result<Option<PathBuf>> {
    if let Some(tools) = std::env::var_os(VARIABLE) {
        return Ok(Some(PathBuf::from(tools)));
    }
    if !go::is_installed() {
        return Ok(None);
    }
    RECIPE.find_or_build(workspace, |_| Ok("-s -w".into()), |_| Ok(())).map(Some)
}

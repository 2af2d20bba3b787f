//! A real kube-apiserver and etcd for the cluster tier: those of `KUBEBUILDER_ASSETS`, else
//! built once from the Go module under `tests/control-plane` and cached for all checkouts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::go::{self, Recipe};
use crate::workspace::Workspace;

/// Names the directory of the binaries, to us and to the tests.
pub(crate) const VARIABLE: &str = "KUBEBUILDER_ASSETS";

const RECIPE: Recipe = Recipe {
    name: "control-plane",
    what: "kube-apiserver and etcd",
    module: "tests/control-plane",
    files: &["go.mod", "go.sum", "kube/main.go", "etcd/main.go"],
    packages: "./...",
    takes: "5 minutes",
};

/// The names under which the one Kubernetes binary is started.
const KUBE_NAMES: [&str; 2] = ["kube-apiserver", "kube-proxy"];

/// Why the cluster tier cannot run here, if so.
pub(crate) fn obstacle() -> Option<String> {
    let missing = std::env::var_os(VARIABLE).is_none() && !go::is_installed();
    missing.then(|| format!("no Go to build kube-apiserver and etcd with, and {VARIABLE} is not set"))
}

/// The directory with `kube-apiserver` and `etcd`.
pub(crate) fn find_or_build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    if let Some(assets) = std::env::var_os(VARIABLE) {
        return Ok(PathBuf::from(assets));
    }
    RECIPE.find_or_build(workspace, version_flags, |directory| {
        KUBE_NAMES.iter().try_for_each(|name| Ok(symlink("kube", directory.join(name))?))
    })
}

/// Makes the API server report the release that `go.mod` names.
fn version_flags(module: &Path) -> anyhow::Result<String> {
    let module = fs::read_to_string(module.join("go.mod"))?;
    let words = module.lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v"));
    let version = words.context("go.mod names no k8s.io/kubernetes")?.trim();
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let set = |name: &str, value: &str| format!("-X k8s.io/component-base/version.{name}={value}");
    let flags = [set("gitVersion", &format!("v{version}")), set("gitMajor", major), set("gitMinor", minor)];
    Ok(format!("-s -w {}", flags.join(" ")))
}

//! A real kube-apiserver and etcd for the cluster tier: those of `KUBEBUILDER_ASSETS`, else
//! built once from the Go module under `tests/control-plane` and cached for all checkouts.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead, BufReader, IsTerminal as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::proc::{say, which};
use crate::workspace::Workspace;

/// Names the directory of the binaries, to us and to the tests.
pub(crate) const VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// The recipe, below the workspace.
const RECIPE: &str = "tests/control-plane";

/// The names under which the one Kubernetes binary is started.
const KUBE_NAMES: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-proxy"];

/// Why the cluster tier cannot run here, if so.
pub(crate) fn obstacle() -> Option<String> {
    let missing = std::env::var_os(VARIABLE).is_none() && which("go").is_none();
    missing.then(|| format!("no Go to build kube-apiserver and etcd with, and {VARIABLE} is not set"))
}

/// The directory with `kube-apiserver` and `etcd`.
pub(crate) fn find_or_build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    if let Some(assets) = std::env::var_os(VARIABLE) {
        return Ok(PathBuf::from(assets));
    }
    let recipe = workspace.root.join(RECIPE);
    let directory = cache(workspace).join(format!("control-plane-{:016x}", hash(&recipe)?));
    if !directory.exists() {
        build(&recipe, &directory)?;
    }
    Ok(directory)
}

/// Outlives the target directory where there is a home to keep it in.
fn cache(workspace: &Workspace) -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    user.map_or_else(|| workspace.target.clone(), |cache| cache.join("shunt"))
}

/// Changes with every file of the recipe.
fn hash(recipe: &Path) -> anyhow::Result<u64> {
    let mut hasher = DefaultHasher::new();
    for file in ["go.mod", "go.sum", "kube/main.go", "etcd/main.go"] {
        fs::read(recipe.join(file)).with_context(|| format!("{RECIPE}/{file}"))?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Builds beside the final place and moves there, so that a broken build leaves nothing.
fn build(recipe: &Path, directory: &Path) -> anyhow::Result<()> {
    let begin = Instant::now();
    say(format_args!("building kube-apiserver and etcd from {RECIPE}, once (about 5 minutes on 2 cores)"));
    let partial = directory.with_extension(std::process::id().to_string());
    fs::create_dir_all(&partial)?;
    let built = go_build(recipe, &partial).and_then(|()| {
        for name in KUBE_NAMES {
            symlink("kube", partial.join(name))?;
        }
        Ok(fs::rename(&partial, directory)?)
    });
    if built.is_err() {
        fs::remove_dir_all(&partial).ok();
    }
    // Another run may have put the same thing in place first.
    if built.is_ok() || directory.exists() {
        say(format_args!(
            "control plane ready in {} after {} s",
            directory.display(),
            begin.elapsed().as_secs()
        ));
        return Ok(());
    }
    built
}

/// `go build`, with the number of compiled packages as progress.
fn go_build(recipe: &Path, out: &Path) -> anyhow::Result<()> {
    let go = which("go").context("no Go is installed")?;
    let mut child = Command::new(go)
        .args(["build", "-v", "-mod=readonly", "-ldflags", &version_flags(recipe)?, "-o"])
        .args([out.join("").as_path(), Path::new("./...")])
        .current_dir(recipe)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run go build")?;
    let stderr = child.stderr.take().context("the output is piped")?;
    let tail = show_progress(BufReader::new(stderr));
    anyhow::ensure!(child.wait()?.success(), "the control plane was not built:\n{}", tail.join("\n"));
    Ok(())
}

/// Counts package names; returns the last lines, which hold the error if there is one.
fn show_progress(lines: impl BufRead) -> Vec<String> {
    const TAIL: usize = 15;
    let step = if std::io::stderr().is_terminal() { 20 } else { 250 };
    let mut tail = Vec::new();
    for (count, line) in lines.lines().map_while(Result::ok).enumerate() {
        if count > 0 && count % step == 0 {
            say(format_args!("control plane: {count} packages ({line})"));
        }
        if tail.len() == TAIL {
            tail.remove(0);
        }
        tail.push(line);
    }
    tail
}

/// Makes the API server report the release that `go.mod` names.
fn version_flags(recipe: &Path) -> anyhow::Result<String> {
    let module = fs::read_to_string(recipe.join("go.mod"))?;
    let words = module.lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v"));
    let version = words.context("go.mod names no k8s.io/kubernetes")?.trim();
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let set = |name: &str, value: &str| format!("-X k8s.io/component-base/version.{name}={value}");
    let flags = [set("gitVersion", &format!("v{version}")), set("gitMajor", major), set("gitMinor", minor)];
    Ok(format!("-s -w {}", flags.join(" ")))
}

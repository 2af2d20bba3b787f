//! Proofs: builds the crate `proofs`, tries all inputs where there are few, and has angr follow all paths of the others.

mod mutants;

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::Context as _;

use crate::packages;
use crate::proc::{clean, line, run, say, which};
use crate::workspace::{Workspace, cargo};

/// The crate, and where in it the prover lies and what that needs.
const FOLDER: &str = "proofs";
const PROVER: &str = "prove.py";
const REQUIREMENTS: &str = "requirements.txt";
/// What both programs end with that have no proof of such a name.
const NONE_CHOSEN: i32 = 3;
/// Written last into what is installed.
const COMPLETE: &str = "complete";

/// Proves what was chosen by parts of names, or everything.
///
/// # Errors
/// When something is refuted or cannot be decided, or a tool is missing.
pub(crate) fn prove(workspace: &Workspace, names: &[String]) -> anyhow::Result<()> {
    let prover = Prover::find_or_install(workspace)?;
    let built = Built::new(workspace.root.join(FOLDER), workspace.target.join("prove"))?;
    let statuses = [built.enumerate(names)?, prover.follow(&built, names)?];
    let is_none = |status: &ExitStatus| status.code() == Some(NONE_CHOSEN);
    anyhow::ensure!(!statuses.iter().all(is_none), "no proof has such a name");
    let is_proved = |status: &ExitStatus| status.success() || is_none(status);
    anyhow::ensure!(statuses.iter().all(is_proved), "not everything is proved, see above");
    Ok(())
}

/// Shows that proofs can fail: each change of `proofs/mutants.toml` must be refuted by its proof.
///
/// # Errors
/// When one is not, or a tool is missing.
pub(crate) fn prove_mutants(workspace: &Workspace) -> anyhow::Result<()> {
    mutants::refute(workspace, &Prover::find_or_install(workspace)?)
}

/// Python with angr and its solvers.
struct Prover {
    python: PathBuf,
    script: PathBuf,
}

impl Prover {
    /// One per list of requirements, kept for all checkouts.
    fn find_or_install(workspace: &Workspace) -> anyhow::Result<Self> {
        let folder = workspace.root.join(FOLDER);
        let requirements = folder.join(REQUIREMENTS);
        let mut hasher = DefaultHasher::new();
        fs::read(&requirements).with_context(|| format!("{FOLDER}/{REQUIREMENTS}"))?.hash(&mut hasher);
        let home = workspace.cache().join(format!("angr-{:016x}", hasher.finish()));
        if !home.join(COMPLETE).exists() {
            install(&home, &requirements)?;
        }
        Ok(Self { python: home.join("bin/python"), script: folder.join(PROVER) })
    }

    /// Follows all paths of the chosen proofs.
    fn follow(&self, built: &Built, names: &[String]) -> anyhow::Result<ExitStatus> {
        status(Command::new(&self.python).arg(&self.script).arg(built.library()).args(names))
    }
}

/// Makes a Python environment in `home` with what is required.
fn install(home: &Path, requirements: &Path) -> anyhow::Result<()> {
    let python = find_python()?;
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    say(format_args!("installing angr and its solvers into {} (half a minute, 500 MB)", home.display()));
    run(Command::new(python).args(["-m", "venv"]).arg(home))?;
    let mut pip = Command::new(home.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    run(pip.arg(requirements))?;
    fs::write(home.join(COMPLETE), "")?;
    Ok(())
}

/// A Python that can make environments, of a version that angr runs on.
fn find_python() -> anyhow::Result<PathBuf> {
    const PACKAGES: [&str; 2] = ["python3", "python3-venv"];
    const CHECK: &str = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))";
    let find = || {
        let python = which("python3")?;
        let output = Command::new(&python).args(["-c", CHECK]).output().ok()?;
        output.status.success().then_some(python)
    };
    if let Some(python) = find() {
        return Ok(python);
    }
    if packages::may_install() && packages::find_all(&PACKAGES)? {
        packages::install(&PACKAGES, "the prover")?;
    }
    find().with_context(|| {
        let install = packages::install_line(&PACKAGES);
        format!("the prover needs Python 3.10 or newer with its module venv: {install}")
    })
}

/// The crate, built.
struct Built {
    release: PathBuf,
}

impl Built {
    fn new(folder: PathBuf, target: PathBuf) -> anyhow::Result<Self> {
        let mut build = clean(cargo());
        build
            .current_dir(folder)
            .args(["build", "--release", "--locked", "--quiet", "--target-dir"])
            .arg(&target);
        run(&mut build)?;
        Ok(Self { release: target.join("release") })
    }

    fn library(&self) -> PathBuf {
        self.release.join(format!("{}proofs{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX))
    }

    /// Tries all inputs of the chosen checks.
    fn enumerate(&self, names: &[String]) -> anyhow::Result<ExitStatus> {
        status(Command::new(self.release.join("exhaustive")).args(names))
    }
}

fn status(command: &mut Command) -> anyhow::Result<ExitStatus> {
    command.status().with_context(|| format!("cannot run {}", line(command)))
}

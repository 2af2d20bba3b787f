//! Builds the agent and the programs of the tests crate, and hands over to one of them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;

use crate::proc::{run, say};
use crate::workspace::{Workspace, cargo};
use crate::{ebpf, machine};

/// The agent, as the tests and the demo are told of it.
pub(crate) const AGENT_VARIABLE: &str = "SHUNT_BIN";

/// Selects all but this task itself. Always the same selection, so that cargo unites features
/// in the same way and compiles dependencies once.
pub(crate) const AGENT_AND_TESTS: [&str; 3] = ["--workspace", "--exclude", "xtask"];

/// A small test. What is built together with one has the features that tests need, so that nothing
/// is compiled twice for tests and programs.
pub(crate) const ANY_TEST: &str = "arrows";

/// The built programs.
pub(crate) struct Binaries {
    directory: PathBuf,
}

impl Binaries {
    /// Builds the eBPF object, the agent and the programs of the tests crate.
    pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<Self> {
        ebpf::build(workspace)?;
        say("building the agent and the test programs");
        let mut build = Command::new(cargo());
        run(build.current_dir(&workspace.root).arg("build").args(AGENT_AND_TESTS).arg("--bins"))?;
        Ok(Self::built(workspace))
    }

    /// Those that were built together with tests.
    pub(crate) fn built(workspace: &Workspace) -> Self {
        Self { directory: workspace.target.join("debug") }
    }

    /// Of one of the programs; the agent is `shunt`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// One of the programs, with the agent's path in its environment.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.path(name));
        command.env(AGENT_VARIABLE, self.path("shunt"));
        command
    }
}

/// Builds what is needed and becomes the program, so that Ctrl-C and the exit status are its own.
pub(crate) fn exec(
    workspace: &Workspace,
    name: &str,
    args: &[OsString],
    variable: Option<(&str, PathBuf)>,
) -> anyhow::Result<()> {
    let wants_help = args.iter().any(|arg| arg == "--help" || arg == "-h");
    if !wants_help {
        machine::make_ready().with_context(|| format!("{name} needs network namespaces and eBPF"))?;
    }
    let binaries = Binaries::build(workspace)?;
    let error = binaries.command(name).args(args).envs(variable).exec();
    Err(error).with_context(|| format!("cannot run {name}"))
}

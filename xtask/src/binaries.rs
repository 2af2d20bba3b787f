//! Builds the agent and the programs of the tests crate, and hands over to one of them.

use std::ffi::OsString;
use std::fs;
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

/// The built programs.
pub(crate) struct Binaries {
    directory: PathBuf,
}

impl Binaries {
    /// Builds the eBPF object, the agent and the programs of the tests crate.
    pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<Self> {
        ebpf::build(workspace, ebpf::Layout::This)?;
        say("building the agent and the test programs");
        let mut build = Command::new(cargo());
        run(build.current_dir(&workspace.root).arg("build").args(AGENT_AND_TESTS).arg("--bins"))?;
        Ok(Self { directory: workspace.target.join("debug") })
    }

    /// The agent's path.
    pub(crate) fn agent(&self) -> PathBuf {
        self.directory.join("shunt")
    }

    /// One of the programs, with the agent's path in its environment.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.directory.join(name));
        command.env(AGENT_VARIABLE, self.agent());
        command
    }
}

/// Builds the agent with a layout of map rows that a later version might have, as `shunt_next` beside
/// the other programs. To be called before [`Binaries::build`], which puts its own agent in its place.
pub(crate) fn build_next(workspace: &Workspace) -> anyhow::Result<()> {
    ebpf::build(workspace, ebpf::Layout::Next)?;
    say("building the agent of another layout");
    let mut build = Command::new(cargo());
    build.current_dir(&workspace.root).arg("build").args(AGENT_AND_TESTS);
    run(build.args(["--bin", "shunt", "--features", "proxy-userspace/next-layout"]))?;
    let directory = workspace.target.join("debug");
    let (built, kept) = (directory.join("shunt"), directory.join("shunt_next"));
    // Cargo's own file is a hard link to one that it uses again.
    fs::copy(&built, &kept)
        .with_context(|| format!("cannot copy {} to {}", built.display(), kept.display()))?;
    Ok(())
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

//! The benchmarks: cargo's own, with the eBPF object built first.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::binaries::AGENT_AND_TESTS;
use crate::workspace::{Workspace, cargo};
use crate::{ebpf, machine};

/// What can be measured.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Benchmark {
    /// Time per packet of every program, by `BPF_PROG_TEST_RUN`
    Packet,
}

/// Builds what is needed and becomes the benchmark.
///
/// What is measured runs in the kernel: the developer's profile serves, and nothing is
/// compiled a second time.
pub(crate) fn exec(workspace: &Workspace, what: Benchmark, args: &[OsString]) -> anyhow::Result<()> {
    let name = match what {
        Benchmark::Packet => "packet",
    };
    machine::make_ready().context("a benchmark needs network namespaces and eBPF")?;
    ebpf::build(workspace, ebpf::Layout::This)?;
    let mut command = Command::new(cargo());
    command.current_dir(&workspace.root).args(["bench", "--profile", "dev"]);
    command.args(AGENT_AND_TESTS).args(["--bench", name, "--"]).args(args);
    Err(command.exec()).context("cannot run cargo bench")
}

//! The benchmarks: cargo's own and the program that compares, with everything built first.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::binaries::{AGENT_AND_TESTS, AGENT_VARIABLE};
use crate::proc::{run, say};
use crate::workspace::{Workspace, cargo};
use crate::{control_plane, ebpf, machine};

/// What can be measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Benchmark {
    /// What requests cost beside kube-proxy and beside no proxy
    Traffic,
    /// What changes of Services cost beside kube-proxy
    Control,
    /// Write the pages of what was measured
    Report,
    /// Fill the cache with the data of API servers that have many Services
    Populate,
    /// Time per packet of every program, by `BPF_PROG_TEST_RUN`
    Packet,
    /// Time of planning and comparing 50,000 Services
    Plan,
}

/// Builds what is needed and measures; without a choice, everything that compares.
pub(crate) fn exec(workspace: &Workspace, what: Option<Benchmark>, args: &[OsString]) -> anyhow::Result<()> {
    let compares = match what {
        // What is measured runs in the kernel: the developer's profile serves, and nothing is
        // compiled a second time.
        Some(Benchmark::Packet) => return cargo_bench(workspace, "packet", &["--profile", "dev"], args),
        Some(Benchmark::Plan) => return cargo_bench(workspace, "plan", &[], args),
        Some(Benchmark::Traffic) => &["traffic"][..],
        Some(Benchmark::Control) => &["control"],
        Some(Benchmark::Report) => &["report"],
        Some(Benchmark::Populate) => &["populate"],
        None => &["traffic", "control", "report"],
    };
    machine::make_ready().context("a benchmark needs network namespaces and eBPF")?;
    ebpf::build(workspace, ebpf::Layout::This)?;
    let assets = control_plane::find_or_build(workspace)?;
    say("building the agent and the benchmark, optimised");
    let mut build = Command::new(cargo());
    build.current_dir(&workspace.root).args(["build", "--release"]).args(AGENT_AND_TESTS);
    run(build.args(["--bin", "shunt", "--bin", "bench", "--bin", "probe"]))?;
    let programs = workspace.target.join("release");
    for step in compares {
        let mut command = Command::new(programs.join("bench"));
        command.current_dir(&workspace.root).arg(step).args(args);
        command.env(AGENT_VARIABLE, programs.join("shunt")).env(control_plane::VARIABLE, &assets);
        run(&mut command)?;
    }
    Ok(())
}

/// Becomes one of cargo's own benchmarks.
fn cargo_bench(workspace: &Workspace, name: &str, profile: &[&str], args: &[OsString]) -> anyhow::Result<()> {
    if name == "packet" {
        machine::make_ready().context("a benchmark needs network namespaces and eBPF")?;
    }
    ebpf::build(workspace, ebpf::Layout::This)?;
    let mut command = Command::new(cargo());
    command.current_dir(&workspace.root).arg("bench").args(profile);
    command.args(AGENT_AND_TESTS).args(["--bench", name, "--"]).args(args);
    Err(command.exec()).context("cannot run cargo bench")
}

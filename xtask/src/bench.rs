//! The benchmarks: cargo's own and the program that compares, with everything built first.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::binaries::{AGENT_AND_TESTS, AGENT_VARIABLE};
use crate::memory::{Limited, Memory};
use crate::proc::{ignore_interrupt, line, run, say};
use crate::workspace::{Workspace, cargo};
use crate::{control_plane, ebpf, machine};

/// Has a measurement go on where it was cut off.
const RESUME: &str = "--resume";

/// What can be measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Benchmark {
    /// What requests cost beside kube-proxy and beside no proxy
    Traffic,
    /// What changes of Services cost beside kube-proxy
    Control,
    /// What holds under load that lasts: source ports over time, floods of SYNs
    Load,
    /// Write the pages of what was measured
    Report,
    /// Fill the cache with the data of API servers that have many Services
    Populate,
    /// Time per packet of every program, by `BPF_PROG_TEST_RUN`
    Packet,
    /// Time of planning and comparing 50,000 Services
    Plan,
    /// Time of sweeping a million rows of connections
    Sweep,
}

/// Builds what is needed and measures; without a choice, everything that compares. `args` are for
/// each measurement.
pub(crate) fn exec(
    workspace: &Workspace,
    what: Option<Benchmark>,
    memory: Memory,
    args: &[OsString],
) -> anyhow::Result<()> {
    let steps = match what {
        // What is measured runs in the kernel: the developer's profile serves, and nothing is
        // compiled a second time.
        Some(Benchmark::Packet) => return cargo_bench(workspace, "packet", &["--profile", "dev"], args),
        Some(Benchmark::Plan) => return cargo_bench(workspace, "plan", &[], args),
        Some(Benchmark::Sweep) => return cargo_bench(workspace, "sweep", &[], args),
        Some(Benchmark::Traffic) => vec![("traffic", args.to_vec())],
        Some(Benchmark::Control) => vec![("control", args.to_vec())],
        Some(Benchmark::Load) => vec![("load", args.to_vec())],
        Some(Benchmark::Report) => vec![("report", args.to_vec())],
        Some(Benchmark::Populate) => vec![("populate", args.to_vec())],
        None => everything(args, |step| workspace.cache().join(format!("bench-{step}.json")).exists())?,
    };
    machine::make_ready().context("a benchmark needs network namespaces and eBPF")?;
    ebpf::build(workspace)?;
    let assets = control_plane::find_or_build(workspace)?;
    say("building the agent and the benchmark, optimised");
    let mut build = Command::new(cargo());
    build.current_dir(&workspace.root).args(["build", "--release"]).args(AGENT_AND_TESTS);
    run(build.args(["--bin", "shunt", "--bin", "bench", "--bin", "probe"]))?;
    let programs = workspace.target.join("release");
    // They clean up after Ctrl-C, and the limit goes when they have ended.
    ignore_interrupt();
    for (step, args) in steps {
        let mut command = Command::new(programs.join("bench"));
        command.current_dir(&workspace.root).arg(step).args(&args);
        command.env(AGENT_VARIABLE, programs.join("shunt")).env(control_plane::VARIABLE, &assets);
        run_within(memory, step, &mut command)?;
    }
    Ok(())
}

/// All that compares, with these arguments for each measurement. One that was cut off has left a
/// journal: what comes before it is finished, what comes behind has not begun.
fn everything(
    args: &[OsString],
    was_cut_off: impl Fn(&str) -> bool,
) -> anyhow::Result<Vec<(&'static str, Vec<OsString>)>> {
    let measurements = ["traffic", "control"];
    let others: Vec<_> = args.iter().filter(|arg| *arg != RESUME).cloned().collect();
    let mut steps: Vec<_> = measurements.map(|step| (step, others.clone())).into();
    if others.len() < args.len() {
        let place = measurements.iter().position(|step| was_cut_off(step));
        let place = place.with_context(|| format!("{RESUME}: no measurement was cut off"))?;
        steps.drain(..place);
        steps[0].1 = args.to_vec();
    }
    steps.push(("report", Vec::new()));
    Ok(steps)
}

/// Runs it within a limit of memory, and says so when the limit was reached.
fn run_within(memory: Memory, step: &str, command: &mut Command) -> anyhow::Result<()> {
    let Some(limited) = Limited::create(memory)? else { return run(command) };
    let mib = limited.mib();
    say(format_args!("{step}: all of it within {mib} MiB of memory (--memory)"));
    limited.hold(command)?;
    let mut child = command.spawn().with_context(|| format!("cannot run {}", line(command)))?;
    let (status, short) = limited.watch(&mut child)?;
    if let Some(peak) = limited.peak_mib() {
        say(format_args!("{step}: had at most {peak} MiB, the system's cache of its files included"));
    }
    anyhow::ensure!(
        !short,
        "{step} needs more than its limit of {mib} MiB and was ended. What was finished is kept: go on with {RESUME} \
         and a larger --memory, or measure fewer Services"
    );
    anyhow::ensure!(status.success(), "{} failed ({status})", line(command));
    Ok(())
}

/// Becomes one of cargo's own benchmarks.
fn cargo_bench(workspace: &Workspace, name: &str, profile: &[&str], args: &[OsString]) -> anyhow::Result<()> {
    if name != "plan" {
        machine::make_ready().context("a benchmark needs network namespaces and eBPF")?;
    }
    ebpf::build(workspace)?;
    let mut command = Command::new(cargo());
    command.current_dir(&workspace.root).arg("bench").args(profile);
    command.args(AGENT_AND_TESTS).args(["--bench", name, "--"]).args(args);
    Err(command.exec()).context("cannot run cargo bench")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_goes_on_where_it_was_cut_off() {
        let steps = |args: &[&str], cut_off: &str| {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            let text = |(step, args): (&str, Vec<OsString>)| {
                args.iter().fold(step.to_owned(), |line, arg| format!("{line} {}", arg.display()))
            };
            everything(&args, |step| step == cut_off)
                .map(|steps| steps.into_iter().map(text).collect::<Vec<_>>().join(", "))
        };
        assert_eq!(steps(&["--add"], "traffic").unwrap(), "traffic --add, control --add, report");
        assert_eq!(steps(&[RESUME], "traffic").unwrap(), "traffic --resume, control, report");
        assert_eq!(steps(&[RESUME], "control").unwrap(), "control --resume, report");
        assert!(steps(&[RESUME], "").is_err());
    }
}

//! Time per packet of the real programs, by `BPF_PROG_TEST_RUN`, beside a program that does
//! nothing on the same hook. `cargo xtask bench packet` runs it.

#[path = "../../tests/packet/bench.rs"]
#[allow(dead_code, reason = "shared with the packet tests, which use the rest")]
mod bench;
#[path = "../../tests/packet/bpf.rs"]
mod bpf;
mod cases;
#[path = "../../tests/packet/frames.rs"]
#[allow(dead_code, reason = "shared with the packet tests, which use the rest")]
mod frames;
mod measure;
mod report;
mod rig;
#[path = "../../tests/packet/uplink.rs"]
#[allow(dead_code, reason = "shared with the packet tests, which use the rest")]
mod uplink;

use anyhow::Result;
use clap::Parser;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use tests::netns::Namespace;

use report::Format;

/// Measures the programs packet by packet.
#[derive(Parser)]
#[command(name = "cargo xtask bench packet", bin_name = "cargo xtask bench packet")]
struct Arguments {
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// How often everything is measured; results are medians over the rounds
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Only cases whose hook or name contains this
    #[arg(default_value_t)]
    filter: String,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let namespace = Namespace::create("bench")?;
    let report = namespace.run(|| {
        stay_on_one_cpu()?;
        let mut rig = rig::Rig::new(&namespace)?;
        let cases: Vec<_> = rig.cases()?.into_iter().filter(|case| case.matches(&arguments.filter)).collect();
        let rows = measure::all(&mut rig, &cases, arguments.rounds)?;
        Ok(report::Report { kernel: kernel()?, rounds: arguments.rounds, rows, programs: rig.programs()? })
    })?;
    report.print(arguments.output)
}

/// The rows of per-CPU maps and the caches of one CPU serve all runs, and no migration is
/// measured.
fn stay_on_one_cpu() -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(nix::sched::sched_getcpu()?)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &cpus)?)
}

fn kernel() -> Result<String> {
    Ok(nix::sys::utsname::uname()?.release().to_string_lossy().into_owned())
}

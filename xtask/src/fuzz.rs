//! Fuzzing: the parser by coverage, in this process's own language, and the programs by
//! mutated packets, in the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use crate::binaries::AGENT_AND_TESTS;
use crate::proc::{clean, output, run, say, which};
use crate::workspace::{Workspace, cargo};
use crate::{ebpf, machine, packages};

/// The release of cargo-fuzz that this is tested with.
const VERSION: &str = "0.13.2";
/// The one target, in `fuzz/fuzz_targets`.
const TARGET: &str = "parser";
/// Longer packets are not read further than this.
const MAX_LEN: usize = 700;
/// Tells the test of the packet tier how long to go on.
const SECONDS: &str = "SHUNT_FUZZ_SECONDS";
/// The test that mutates packets for the programs.
const PROGRAMS: &str = "mutated::";

/// Fuzzes for `time` each.
pub(crate) fn fuzz(workspace: &Workspace, time: Duration, coverage: bool) -> anyhow::Result<()> {
    find_or_install()?;
    let fuzz = Fuzz { folder: workspace.root.join("fuzz"), target: workspace.target.join("fuzz") };
    fuzz.parser(time)?;
    if coverage {
        fuzz.coverage()?;
    }
    if let Err(obstacle) = machine::make_ready() {
        say(format_args!("the programs are not fuzzed: {obstacle:#}"));
        return Ok(());
    }
    ebpf::build(workspace)?;
    say(format_args!("mutated packets through the programs, {} s", time.as_secs()));
    let mut test = Command::new(cargo());
    test.current_dir(&workspace.root).arg("test").args(AGENT_AND_TESTS).args(["--test", "packet"]);
    run(test.args(["--", PROGRAMS, "--nocapture"]).env(SECONDS, time.as_secs().to_string()))
}

fn find_or_install() -> anyhow::Result<()> {
    if which("cargo-fuzz").is_some() {
        return Ok(());
    }
    say(format_args!("building cargo-fuzz {VERSION} (a minute)"));
    run(clean(cargo()).args(["install", "cargo-fuzz", "--version", VERSION, "--locked"]))
}

struct Fuzz {
    folder: PathBuf,
    target: PathBuf,
}

impl Fuzz {
    /// `cargo fuzz` in its folder. The parser has no `unsafe` that a sanitizer could watch but
    /// one bounded read, and without a sanitizer any toolchain will do.
    ///
    /// Each verb builds in a folder of its own: they instrument differently.
    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(cargo());
        command.current_dir(&self.folder).args(["fuzz", verb, "--sanitizer", "none", "--fuzz-dir", "."]);
        command.arg("--target-dir").arg(self.target.join(verb));
        command
    }

    fn corpus(&self) -> PathBuf {
        self.folder.join("corpus").join(TARGET)
    }

    /// Starts from what earlier runs found and from the seeds; a finding ends it.
    fn parser(&self, time: Duration) -> anyhow::Result<()> {
        fs::create_dir_all(self.corpus())?;
        let mut command = self.command("run");
        command.arg(TARGET).arg(self.corpus()).arg(Path::new("seeds").join(TARGET)).arg("--");
        command.arg(format!("-max_len={MAX_LEN}")).arg(format!("-max_total_time={}", time.as_secs()));
        run(command.arg("-print_final_stats=1"))
    }

    /// How much of the parser the packets reach that are kept.
    fn coverage(&self) -> anyhow::Result<()> {
        let tools = llvm_tools()?;
        let mut command = self.command("coverage");
        command.arg("--llvm-path").arg(&tools);
        command.arg(TARGET).arg(self.corpus()).arg(Path::new("seeds").join(TARGET));
        say("the same packets through a build that counts");
        output(&mut command).context("cargo fuzz coverage failed")?;
        let program = format!("coverage/{}/release/{TARGET}", host()?);
        let mut report = Command::new(tools.join("llvm-cov"));
        report.current_dir(&self.folder).arg("report").arg(self.target.join(program));
        report.arg(format!("-instr-profile=coverage/{TARGET}/coverage.profdata"));
        run(report.arg("../proxy-common/src/packet"))
    }
}

fn rustc(arguments: &[&str]) -> anyhow::Result<String> {
    output(Command::new("rustc").args(arguments)).context("cannot ask rustc")
}

fn host() -> anyhow::Result<String> {
    let version = rustc(&["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names no host")?.to_owned())
}

/// The folder of llvm-profdata and llvm-cov that read what this rustc writes: its own
/// component, else the distribution's of the same version.
fn llvm_tools() -> anyhow::Result<PathBuf> {
    let own = PathBuf::from(rustc(&["--print=target-libdir"])?).with_file_name("bin");
    let version = rustc(&["-vV"])?;
    let llvm = version.lines().find_map(|line| line.strip_prefix("LLVM version: "));
    let major = llvm.and_then(|llvm| llvm.split('.').next()).context("rustc names no LLVM")?;
    let packaged = PathBuf::from(format!("/usr/lib/llvm-{major}/bin"));
    let found = [own, packaged].into_iter().find(|folder| folder.join("llvm-cov").exists());
    let package = format!("llvm-{major}");
    found.with_context(|| {
        format!(
            "no llvm-cov {major}; fix: rustup component add llvm-tools, or {}",
            packages::install_line(&[&package])
        )
    })
}

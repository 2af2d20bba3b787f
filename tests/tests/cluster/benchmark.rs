//! The benchmark measures, and leaves its results and nothing else.

use anyhow::{Context, Result, ensure};
use std::{fs, process::Command};
use tests::{
    bench::{contender::Contender, cpus, traffic::Traffic},
    process::binary,
    skip::skipped,
};

#[test]
fn a_short_measurement_leaves_results_and_nothing_else() -> Result<()> {
    if cpus::allowed()?.len() < 2 {
        skipped("a measurement needs a CPU beside the one that is measured");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (out, cache) = (folder.path().join("results"), folder.path().join("cache"));
    fs::create_dir(&out)?;
    let bench = |more: &[&str]| {
        let mut command = Command::new(binary("bench")?);
        command.args([
            "traffic",
            "--services",
            "10",
            "--rounds",
            "1",
            "--seconds",
            "0.02",
            "--paths",
            "pod-local",
        ]);
        command
            .args(["--workloads", "tcp-connect,udp-flow", "--contenders", "nftables,shunt-all"])
            .args(more);
        command.arg("--out").arg(&out).env("XDG_CACHE_HOME", &cache).output().context("start bench")
    };
    let output = bench(&[])?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    ensure!(said.contains("round 1 of 1: 1 of 1, about 0 min left"), "{said}");

    let results = Traffic::read(&out.join("traffic.json"))?.context("no results")?;
    let cells = results.runs.iter().flat_map(|run| &run.cells);
    let measured: Vec<_> = cells.map(|cell| (cell.contender, cell.micros > 0.0, cell.failed)).collect();
    for contender in [Contender::Direct, Contender::Nftables, Contender::ShuntAll] {
        let its = measured.iter().filter(|cell| **cell == (contender, true, 0)).count();
        ensure!(its == 2, "{contender:?}: {its} of 2 kinds of requests in {measured:?}");
    }
    let left: Vec<_> =
        fs::read_dir(cache.join("shunt"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    ensure!(left.is_empty(), "left behind: {left:?}");

    let refused = bench(&["--resume"])?;
    let complaint = String::from_utf8_lossy(&refused.stderr);
    ensure!(!refused.status.success() && complaint.contains("no measurement was cut off"), "{complaint}");
    Ok(())
}

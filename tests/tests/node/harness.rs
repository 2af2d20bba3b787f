//! The harness itself: whatever ends it, nothing of it stays.

use crate::world::soon;
use anyhow::{Context, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};
use tests::{cgroup, late};

/// What process `id` has made and not removed.
fn remains(id: u32) -> Result<Vec<PathBuf>> {
    let prefix = format!("sh{id}-");
    let mut found = Vec::new();
    for folder in [Path::new("/run"), Path::new("/run/netns"), &cgroup::root()?] {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                found.push(entry.path());
            }
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    found.extend(mounts.lines().filter(|line| line.contains(&prefix)).map(PathBuf::from));
    Ok(found)
}

fn demo() -> Result<Child> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
    command.arg("--keep").stdout(Stdio::null()).spawn().context("start the demo")
}

fn ensure_runs(demo: &mut Child) -> Result<()> {
    let ended = demo.try_wait()?;
    ensure!(ended.is_none(), "the demo ended with {ended:?}");
    Ok(())
}

/// Waits until it has made so many things.
fn makes(demo: &mut Child, count: usize) -> Result<()> {
    soon(|| {
        ensure_runs(demo)?;
        let made = remains(demo.id())?.len();
        ensure!(made >= count, late!("{made} of {count} things were made"));
        Ok(())
    })
}

#[test]
fn an_interrupted_demo_removes_everything() -> Result<()> {
    // While the nodes are built, while agents start, while everything stands.
    for (wait, signal) in [(60, Signal::SIGINT), (900, Signal::SIGTERM), (4000, Signal::SIGINT)] {
        let mut demo = demo()?;
        makes(&mut demo, 1)?;
        thread::sleep(Duration::from_millis(wait));
        kill(Pid::from_raw(demo.id().cast_signed()), signal)?;
        let status = demo.wait()?;
        assert_eq!(status.code(), Some(128 + signal as i32), "after {wait} ms");
        assert_eq!(remains(demo.id())?, Vec::<PathBuf>::new(), "after {wait} ms");
    }
    Ok(())
}

#[test]
fn what_a_killed_process_left_is_swept_by_the_next() -> Result<()> {
    let mut first = demo()?;
    makes(&mut first, 11)?;
    first.kill()?;
    first.wait()?;
    ensure!(!remains(first.id())?.is_empty(), "a killed process cannot clean up");
    let mut second = demo()?;
    let swept = soon(|| {
        ensure_runs(&mut second)?;
        let left = remains(first.id())?;
        ensure!(left.is_empty(), late!("not swept: {left:?}"));
        Ok(())
    });
    kill(Pid::from_raw(second.id().cast_signed()), Signal::SIGINT)?;
    second.wait()?;
    swept
}

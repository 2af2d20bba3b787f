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
use tests::cgroup;

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

#[test]
fn an_interrupted_demo_removes_everything() -> Result<()> {
    // While the nodes are built, while agents start, while everything stands.
    for (wait, signal) in [(60, Signal::SIGINT), (900, Signal::SIGTERM), (4000, Signal::SIGINT)] {
        let mut demo = demo()?;
        soon(|| {
            ensure!(!remains(demo.id())?.is_empty(), "nothing was made");
            Ok(())
        })?;
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
    soon(|| {
        ensure!(remains(first.id())?.len() > 10, "not much was made");
        Ok(())
    })?;
    first.kill()?;
    first.wait()?;
    ensure!(!remains(first.id())?.is_empty(), "a killed process cannot clean up");
    let mut second = demo()?;
    let swept = soon(|| {
        ensure!(remains(first.id())?.is_empty(), "{:?}", remains(first.id())?);
        Ok(())
    });
    kill(Pid::from_raw(second.id().cast_signed()), Signal::SIGINT)?;
    second.wait()?;
    swept
}

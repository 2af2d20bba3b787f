//! One CPU is left to what is measured: both ends and the kernel's work between them. While
//! there is something to do it is never idle, so elapsed time is CPU time.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// The CPUs this process may use, in ascending order.
pub fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("which CPUs this process may use")?;
    (0..CpuSet::count())
        .filter_map(|cpu| set.is_set(cpu).map(|yes| yes.then_some(cpu)).transpose())
        .collect::<nix::Result<_>>()
        .context("read a set of CPUs")
}

/// Lets the calling thread, and those it starts, run on these CPUs only.
pub fn restrict(cpus: &[usize]) -> Result<()> {
    restrict_thread(Pid::from_raw(0), &set_of(cpus)?).with_context(|| format!("run on CPUs {cpus:?} only"))
}

/// Keeps this process and its descendants off one CPU as long as it lives.
#[derive(Debug)]
pub struct KeptOff {
    before: BTreeMap<i32, CpuSet>,
}

impl KeptOff {
    /// Moves all but `exempt` and their descendants to the other CPUs.
    pub fn new(cpu: usize, exempt: &[u32]) -> Result<Self> {
        let others: Vec<usize> = allowed()?.into_iter().filter(|other| *other != cpu).collect();
        ensure!(!others.is_empty(), "a CPU for everything else is needed: there is only CPU {cpu}");
        let others = set_of(&others)?;
        let exempt: BTreeSet<u32> = exempt.iter().copied().collect();
        let mut kept = Self { before: BTreeMap::new() };
        for process in family(std::process::id(), &exempt)? {
            for thread in threads(process) {
                kept.move_thread(thread, &others)?;
            }
        }
        Ok(kept)
    }

    /// A thread that has ended meanwhile needs no moving.
    fn move_thread(&mut self, thread: i32, to: &CpuSet) -> Result<()> {
        let pid = Pid::from_raw(thread);
        let Ok(before) = sched_getaffinity(pid) else { return Ok(()) };
        restrict_thread(pid, to).with_context(|| format!("move thread {thread} to other CPUs"))?;
        self.before.insert(thread, before);
        Ok(())
    }
}

impl Drop for KeptOff {
    fn drop(&mut self) {
        for (thread, set) in &self.before {
            // It may have ended; nobody else has its number as long as its process is not reaped.
            let _ = sched_setaffinity(Pid::from_raw(*thread), set);
        }
    }
}

fn restrict_thread(thread: Pid, set: &CpuSet) -> nix::Result<()> {
    match sched_setaffinity(thread, set) {
        Err(Errno::ESRCH) => Ok(()),
        result => result,
    }
}

fn set_of(cpus: &[usize]) -> Result<CpuSet> {
    let mut set = CpuSet::new();
    cpus.iter().try_for_each(|cpu| set.set(*cpu)).context("a set of CPUs")?;
    Ok(set)
}

/// A process and its descendants without those exempt.
pub(super) fn family(root: u32, exempt: &BTreeSet<u32>) -> Result<Vec<u32>> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").context("list /proc")?.flatten() {
        let Ok(process) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        if let Some(parent) = parent(&entry.path()) {
            children.entry(parent).or_default().push(process);
        }
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(process) = next.pop() {
        if !exempt.contains(&process) {
            found.push(process);
            next.extend(children.remove(&process).unwrap_or_default());
        }
    }
    Ok(found)
}

/// Of `/proc/PID/stat`, whose second field may hold anything in parentheses.
fn parent(process: &Path) -> Option<u32> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn threads(process: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_string_lossy().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_is_family_unless_exempt() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let (own, id) = (std::process::id(), child.id());
        let found = family(own, &BTreeSet::new()).expect("family");
        let without = family(own, &BTreeSet::from([id])).expect("family");
        child.kill().and_then(|()| child.wait()).expect("end");
        assert!(found.contains(&own) && found.contains(&id), "{found:?}");
        assert!(without.contains(&own) && !without.contains(&id), "{without:?}");
    }
}

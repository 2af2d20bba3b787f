//! What a proxy uses: processor time with its children, and memory.

use crate::{
    bench::proc::{field, maps},
    cgroup::Cgroup,
};
use anyhow::{Context as _, Result};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

const KIB: f64 = 1024.0;
/// How often children are looked for, which live shortly.
const LOOK: Duration = Duration::from_millis(50);

/// A process in a cgroup of its own, in which its children are, too.
#[derive(Debug)]
pub(super) struct Usage {
    process: u32,
    children: Children,
    cgroup: Cgroup,
}

impl Usage {
    /// Counts from now on. A process that has just been started has used nothing before.
    pub(super) fn of(process: u32) -> Result<Self> {
        let cgroup = Cgroup::create("proxy")?;
        let members = cgroup.path().join("cgroup.procs");
        fs::write(&members, process.to_string()).with_context(|| format!("join {}", members.display()))?;
        Ok(Self { process, children: Children::watch(process, members), cgroup })
    }

    /// Processor time so far, of children as well.
    pub(super) fn cpu(&self) -> Result<Duration> {
        let path = self.cgroup.path().join("cpu.stat");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let used = field(&text, "usage_usec").with_context(|| format!("{} has no usage", path.display()))?;
        Ok(Duration::from_micros(used))
    }

    /// The most memory that the process itself has had, in MiB.
    pub(super) fn peak_mib(&self) -> Result<f64> {
        let path = PathBuf::from(format!("/proc/{}/status", self.process));
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let peak = field(&text, "VmHWM:").with_context(|| format!("{} has no VmHWM", path.display()))?;
        Ok(peak as f64 / KIB)
    }

    /// The most that its children were seen to have together, in MiB.
    pub(super) fn children_mib(&self) -> f64 {
        self.children.peak_kib.load(Ordering::Relaxed) as f64 / KIB
    }

    /// The part of its memory now that is rows of maps, which it reads and writes in place, in MiB.
    pub(super) fn mapped_mib(&self) -> Result<f64> {
        let path = PathBuf::from(format!("/proc/{}/smaps", self.process));
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        // A mapping begins with its name, at the end of a line; its numbers follow.
        let mut is_map = false;
        let mut kib = 0;
        for line in text.lines() {
            if let Some(resident) = field(line, "Rss:") {
                kib += if is_map { resident } else { 0 };
                is_map = false;
            } else if line.ends_with("anon_inode:bpf-map") {
                is_map = true;
            }
        }
        Ok(kib as f64 / KIB)
    }

    /// What the kernel has set aside for the maps that the process holds, in MiB.
    pub(super) fn maps_mib(&self) -> Result<f64> {
        let bytes: u64 = maps(self.process)?.values().sum();
        Ok(bytes as f64 / KIB / KIB)
    }
}

/// Looks at the children of a process as long as it lives.
#[derive(Debug)]
struct Children {
    peak_kib: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Children {
    fn watch(parent: u32, members: PathBuf) -> Self {
        let (peak_kib, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (peak, ended) = (Arc::clone(&peak_kib), Arc::clone(&ends));
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                peak.fetch_max(children_kib(parent, &members), Ordering::Relaxed);
                thread::sleep(LOOK);
            }
        });
        Self { peak_kib, ends, thread: Some(thread) }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // A thread that panicked has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Those that end meanwhile count as nothing.
fn children_kib(parent: u32, members: &Path) -> u64 {
    let members = fs::read_to_string(members).unwrap_or_default();
    let children = members.lines().filter(|id| *id != parent.to_string());
    let texts = children.filter_map(|id| fs::read_to_string(format!("/proc/{id}/status")).ok());
    texts.filter_map(|text| field(&text, "VmRSS:")).sum()
}

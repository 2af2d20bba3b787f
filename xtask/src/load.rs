//! A machine that is slower than this one: what runs in it gets a part of the CPUs' time, in turns,
//! beside neighbours that are always busy.

use std::hint;
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Context as _;

use crate::cgroup::{Cgroup, Version};

/// In which the CPU time is given out, in microseconds: the kernel's default.
const PERIOD: f64 = 100_000.0;

/// How many times slower, as the user says it: `3x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Factor(pub(crate) f64);

impl FromStr for Factor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('x').unwrap_or(text).parse().ok();
        let factor = number.filter(|factor| (1.0..=50.0).contains(factor));
        factor.map(Self).ok_or_else(|| format!("{text:?} is no factor from 1x to 50x, such as 3x"))
    }
}

impl std::fmt::Display for Factor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x", self.0)
    }
}

/// The slower machine; it and the neighbours go with this value.
#[derive(Debug)]
pub(crate) struct Load {
    cgroup: Cgroup,
    ends: Arc<AtomicBool>,
    neighbours: Vec<JoinHandle<()>>,
}

impl Load {
    /// Sets up the limit, and starts a neighbour on each CPU.
    pub(crate) fn start(factor: Factor) -> anyhow::Result<Self> {
        let cgroup = Cgroup::create("cpu", "load").context("cannot slow tests down by --load")?;
        let cpus = thread::available_parallelism().context("cannot count the CPUs")?.get();
        let quota = (cpus as f64 * PERIOD / factor.0) as u64;
        // As much weight as the neighbours have, so that it is the quota that limits.
        match cgroup.version() {
            Version::V1 => {
                cgroup.write("cpu.cfs_quota_us", quota)?;
                cgroup.write("cpu.shares", 1024 * cpus)?;
            }
            Version::V2 => {
                cgroup.write("cpu.max", format_args!("{quota} {PERIOD}"))?;
                cgroup.write("cpu.weight", (100 * cpus).min(10_000))?;
            }
        }
        let ends = Arc::new(AtomicBool::new(false));
        let neighbour = |_| {
            let ends = Arc::clone(&ends);
            thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            })
        };
        let neighbours = (0..cpus).map(neighbour).collect();
        Ok(Self { cgroup, ends, neighbours })
    }

    /// Has the command run in it.
    pub(crate) fn hold(&self, command: &mut Command) -> anyhow::Result<()> {
        self.cgroup.hold(command)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for neighbour in self.neighbours.drain(..) {
            // They do nothing that could panic.
            let _ = neighbour.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_a_number_of_times() {
        assert_eq!("3x".parse(), Ok(Factor(3.0)));
        assert_eq!("1.5".parse(), Ok(Factor(1.5)));
        for wrong in ["", "x", "0x", "0.5x", "-3x", "99x", "NaN", "3xx"] {
            assert!(wrong.parse::<Factor>().unwrap_err().contains("3x"), "{wrong}");
        }
    }
}

//! A limit to the memory of everything that a command starts, by a cgroup of its own: what needs
//! more than there is must end itself, and not the machine.

use std::fs;
use std::process::{Child, Command, ExitStatus};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use crate::cgroup::{Cgroup, Version};
use crate::proc::end;

/// How long the command may take to clean up and end.
const ENDS: Duration = Duration::from_secs(30);
/// Whoever met the limit in each of so many seconds does nothing else any more: the kernel takes away
/// pages of programs that are read again at once, and ends nobody.
const STARVED: u32 = 10;

/// How much, as the user says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Percent of the machine's.
    Share(u64),
    /// MiB.
    MiB(u64),
    /// Without a limit.
    Unlimited,
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Unlimited);
        }
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number: u64 = digits.parse().map_err(|_| expected(text))?;
        match &text[digits.len()..] {
            "%" if (1..=100).contains(&number) => Ok(Self::Share(number)),
            "M" | "MiB" if number > 0 => Ok(Self::MiB(number)),
            "G" | "GiB" if number > 0 => {
                number.checked_mul(1024).map(Self::MiB).ok_or_else(|| expected(text))
            }
            _ => Err(expected(text)),
        }
    }
}

fn expected(text: &str) -> String {
    format!("{text:?} is neither a share like 60%, nor an amount like 8G or 4096M, nor \"none\"")
}

impl Memory {
    fn mib(self) -> anyhow::Result<Option<u64>> {
        Ok(match self {
            Self::Unlimited => None,
            Self::MiB(mib) => Some(mib),
            Self::Share(percent) => {
                let facts = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
                let total = facts.lines().find_map(|line| line.strip_prefix("MemTotal:"));
                let kib: u64 = total
                    .and_then(|total| total.trim().strip_suffix(" kB")?.trim().parse().ok())
                    .context("/proc/meminfo has no MemTotal")?;
                Some(kib / 1024 * percent / 100)
            }
        })
    }
}

/// Memory with a limit, in a cgroup of its own; the limit goes with this value.
pub(crate) struct Limited {
    cgroup: Cgroup,
    files: &'static Files,
    mib: u64,
}

/// The names of files differ between the two versions of cgroups.
struct Files {
    limit: &'static str,
    /// Has a line `oom_kill N`.
    events: &'static str,
    /// Has how often the limit was met: as its only number, or in a line `max N`.
    met: &'static str,
    peak: &'static str,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    events: "memory.oom_control",
    met: "memory.failcnt",
    peak: "memory.max_usage_in_bytes",
};
const V2: Files =
    Files { limit: "memory.max", events: "memory.events", met: "memory.events", peak: "memory.peak" };

impl Limited {
    /// Makes it; nothing if there is to be no limit.
    ///
    /// # Errors
    /// When this machine cannot limit memory.
    pub(crate) fn create(memory: Memory) -> anyhow::Result<Option<Self>> {
        let Some(mib) = memory.mib()? else { return Ok(None) };
        let cgroup = Cgroup::create("memory", "bench")
            .context("cannot limit memory (fix: mount its cgroups, or say --memory none)")?;
        let files = match cgroup.version() {
            Version::V1 => &V1,
            Version::V2 => &V2,
        };
        cgroup.write(files.limit, mib << 20)?;
        Ok(Some(Self { cgroup, files, mib }))
    }

    /// In MiB.
    pub(crate) fn mib(&self) -> u64 {
        self.mib
    }

    /// Has the command run within it.
    pub(crate) fn hold(&self, command: &mut Command) -> anyhow::Result<()> {
        self.cgroup.hold(command)
    }

    /// How many processes the kernel has ended because the limit was reached.
    fn ended(&self) -> u64 {
        let events = self.cgroup.read(self.files.events);
        events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
    }

    /// How often the limit was met. The cache of files makes room then, so that may go well.
    fn met(&self) -> u64 {
        let text = self.cgroup.read(self.files.met);
        let number = |line: &str| line.strip_prefix("max ").unwrap_or(line).parse().ok();
        text.lines().find_map(number).unwrap_or(0)
    }

    /// Waits for the command, and ends it when it does not get the memory it needs: true if so.
    pub(crate) fn watch(&self, child: &mut Child) -> anyhow::Result<(ExitStatus, bool)> {
        let mut starvation = Starvation::default();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok((status, self.ended() > 0));
            }
            thread::sleep(Duration::from_secs(1));
            if self.ended() > 0 || starvation.second(self.met()) {
                return Ok((end(child, libc::SIGTERM, ENDS)?, true));
            }
        }
    }

    /// The most that was in use at a time, in MiB.
    pub(crate) fn peak_mib(&self) -> Option<u64> {
        Some(self.cgroup.read(self.files.peak).trim().parse::<u64>().ok()? >> 20)
    }
}

/// Seconds in a row in which the limit was met.
#[derive(Default)]
struct Starvation {
    met: u64,
    seconds: u32,
}

impl Starvation {
    /// After another second, with how often the limit has been met so far: true if it goes on too long.
    fn second(&mut self, met: u64) -> bool {
        self.seconds = if met > self.met { self.seconds + 1 } else { 0 };
        self.met = met;
        self.seconds >= STARVED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_share_or_an_amount() {
        let parsed = |text: &str| text.parse::<Memory>();
        assert_eq!(parsed("60%"), Ok(Memory::Share(60)));
        assert_eq!(parsed("8G"), Ok(Memory::MiB(8192)));
        assert_eq!(parsed("4096MiB"), Ok(Memory::MiB(4096)));
        assert_eq!(parsed("none"), Ok(Memory::Unlimited));
        for wrong in
            ["", "60", "0%", "101%", "0G", "-1G", "lots", "99999999999999999999G", "18446744073709551615G"]
        {
            assert!(parsed(wrong).unwrap_err().contains("60%"), "{wrong}");
        }
    }

    #[test]
    fn who_meets_the_limit_all_the_time_starves() {
        let mut starvation = Starvation::default();
        assert!((1..10).all(|met| !starvation.second(met)));
        assert!(!starvation.second(9), "a second without");
        assert!((10..19).all(|met| !starvation.second(met)));
        assert!(starvation.second(19));
    }

    #[test]
    fn a_share_is_of_this_machine() {
        let whole = Memory::Share(100).mib().unwrap().unwrap();
        assert_eq!(Memory::Share(50).mib().unwrap(), Some(whole / 2));
        assert!(whole > 100, "{whole} MiB");
    }
}

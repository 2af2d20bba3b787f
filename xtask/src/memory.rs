//! A limit to the memory of everything that a command starts, by a cgroup of its own: what needs
//! more than there is must end itself, and not the machine.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::proc::say;

/// Tells the test harness where it may make cgroups, so that nothing leaves this one.
const CGROUPS_VARIABLE: &str = "SHUNT_CGROUPS";
/// How long the last of the processes may take to end.
const EMPTIES: Duration = Duration::from_secs(30);
/// Whoever met the limit in each of so many seconds does nothing else any more: the kernel takes away
/// pages of programs that are read again at once, and ends nobody.
const STARVED: u32 = 10;
/// Names of the cgroups, followed by the process that made them.
const PREFIX: &str = "shunt-bench-";

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

/// A cgroup with a limit; goes with this value.
pub(crate) struct Limited {
    path: PathBuf,
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
    /// Of the unified hierarchy, in which sockets are translated.
    unified: bool,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    events: "memory.oom_control",
    met: "memory.failcnt",
    peak: "memory.max_usage_in_bytes",
    unified: false,
};
const V2: Files = Files {
    limit: "memory.max",
    events: "memory.events",
    met: "memory.events",
    peak: "memory.peak",
    unified: true,
};

impl Limited {
    /// Makes it; nothing if there is to be no limit.
    ///
    /// # Errors
    /// When this machine cannot limit memory.
    pub(crate) fn create(memory: Memory) -> anyhow::Result<Option<Self>> {
        let Some(mib) = memory.mib()? else { return Ok(None) };
        let (root, files) = hierarchy()?;
        sweep(&root);
        let limited = Self { path: root.join(format!("{PREFIX}{}", std::process::id())), files, mib };
        fs::create_dir(&limited.path)
            .with_context(|| format!("cannot make the cgroup {}", limited.path.display()))?;
        let limit = limited.path.join(files.limit);
        fs::write(&limit, (mib << 20).to_string())
            .with_context(|| format!("cannot write {}", limit.display()))?;
        Ok(Some(limited))
    }

    /// In MiB.
    pub(crate) fn mib(&self) -> u64 {
        self.mib
    }

    /// Has the command run in it.
    pub(crate) fn hold(&self, command: &mut Command) -> anyhow::Result<()> {
        let processes = self.path.join("cgroup.procs");
        let file = fs::OpenOptions::new().write(true).open(&processes);
        let file = file.with_context(|| format!("cannot open {}", processes.display()))?;
        if self.files.unified {
            command.env(CGROUPS_VARIABLE, &self.path);
        }
        // SAFETY: write(2) is async-signal-safe; 0 stands for the writing process.
        unsafe { command.pre_exec(move || std::io::Write::write_all(&mut &file, b"0")) };
        Ok(())
    }

    /// How many processes the kernel has ended because the limit was reached.
    fn ended(&self) -> u64 {
        let events = fs::read_to_string(self.path.join(self.files.events)).unwrap_or_default();
        events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
    }

    /// How often the limit was met. The cache of files makes room then, so that may go well.
    fn met(&self) -> u64 {
        let text = fs::read_to_string(self.path.join(self.files.met)).unwrap_or_default();
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
                return Ok((end(child)?, true));
            }
        }
    }

    /// The most that was in use at a time, in MiB.
    pub(crate) fn peak_mib(&self) -> Option<u64> {
        let peak = fs::read_to_string(self.path.join(self.files.peak)).ok()?;
        Some(peak.trim().parse::<u64>().ok()? >> 20)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let deadline = Instant::now() + EMPTIES;
        while let Err(error) = remove(&self.path) {
            if Instant::now() > deadline {
                say(format_args!("cannot remove the cgroup {}: {error}", self.path.display()));
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Removes a cgroup of ours with those below it, in which nothing runs any more.
fn remove(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)?.flatten().filter(|entry| entry.path().is_dir()) {
        remove(&entry.path())?;
    }
    fs::remove_dir(path)
}

/// Removes what others have left that were killed.
fn sweep(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        let is_dead = |owner: u32| !Path::new("/proc").join(owner.to_string()).exists();
        if owner.is_some_and(is_dead)
            && let Err(error) = remove(&entry.path())
        {
            say(format_args!("cannot remove the cgroup {}: {error}", entry.path().display()));
        }
    }
}

/// Has the command clean up and end.
fn end(child: &mut Child) -> anyhow::Result<ExitStatus> {
    // SAFETY: kill(2) takes integers. The number is the child's as long as it is not waited for.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
    let deadline = Instant::now() + EMPTIES;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(100));
    }
    child.kill()?;
    Ok(child.wait()?)
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

/// Where cgroups with a limit can be made.
fn hierarchy() -> anyhow::Result<(PathBuf, &'static Files)> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (Some(path), Some(kind), Some(options)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let path = PathBuf::from(path);
        match kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => return Ok((path, &V1)),
            "cgroup2" if limits_memory(&path) => return Ok((path, &V2)),
            _ => {}
        }
    }
    anyhow::bail!("this machine has no cgroups that limit memory; fix: mount one, or say --memory none")
}

/// Whether cgroups below the root of this unified hierarchy can limit memory.
fn limits_memory(root: &Path) -> bool {
    let enabled = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
    enabled.split_whitespace().any(|controller| controller == "memory")
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

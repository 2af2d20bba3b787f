//! What the kernel tells in `/proc`: numbers behind names, maps that a process holds, processor time.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::unistd::{SysconfVar, sysconf};

use super::cpus::family;

/// The process whose children are the kernel's threads.
const KERNEL: &str = "2";

/// The number behind a name, in text of one name and one value per line.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What the kernel has set aside for each map that a process holds, in bytes by the map's id.
pub(super) fn maps(process: u32) -> Result<BTreeMap<u32, u64>> {
    let folder = PathBuf::from(format!("/proc/{process}/fdinfo"));
    let entries = fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    // By id: a map may be open more than once. A descriptor may be closed meanwhile.
    let texts = entries.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let map = |text: String| {
        let id = field(&text, "map_id:")?.try_into().ok()?;
        Some((id, field(&text, "memlock:")?))
    };
    Ok(texts.filter_map(map).collect())
}

/// Processor time of all CPUs since the machine started, interrupts included.
pub(super) fn busy() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    lasting(ticks(&stat).context("/proc/stat has no processor time")?)
}

/// Processor time of a process so far, and of its children that have ended.
pub(super) fn used(process: u32) -> Result<Duration> {
    let path = format!("/proc/{process}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    lasting(ticks_of_program(&stat).with_context(|| format!("{path} says {stat:?}"))?)
}

/// Processor time of processes that are neither this one nor of its family, nor the kernel's own; of
/// children that have ended, too.
pub(super) fn others() -> Result<Duration> {
    let own: BTreeSet<u32> = family(std::process::id(), &BTreeSet::new())?.into_iter().collect();
    let processes = fs::read_dir("/proc").context("list /proc")?.flatten();
    let others = processes.filter_map(|entry| {
        let is_own = own.contains(&entry.file_name().to_str()?.parse().ok()?);
        // One that has just ended is missing.
        let stat = (!is_own).then(|| fs::read_to_string(entry.path().join("stat")).ok())??;
        ticks_of_program(&stat)
    });
    lasting(others.sum())
}

fn lasting(ticks: u64) -> Result<Duration> {
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("the length of a tick is not known")?;
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// Of `/proc/PID/stat`: utime, stime, cutime and cstime. None of a thread of the kernel.
fn ticks_of_program(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let is_kernel = fields.get(1)? == &KERNEL || stat.starts_with("2 ");
    let ticks = || fields.get(11..15)?.iter().map(|ticks| ticks.parse::<u64>().ok()).sum();
    if is_kernel { None } else { ticks() }
}

/// Those of user, nice, system, irq and softirq: neither idle nor waiting.
fn ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let numbers: Vec<u64> = line.split_whitespace().map_while(|number| number.parse().ok()).collect();
    [0, 1, 2, 5, 6].iter().map(|place| numbers.get(*place)).sum()
}

/// Packets in `/proc/net/dev` that devices could not send.
pub(super) fn not_sent(dev: &str) -> u64 {
    let devices = dev.lines().filter_map(|line| line.split_once(':'));
    // Eight numbers of what was received stand before those of what was sent: bytes, packets, errors, drops.
    devices.filter_map(|(_, numbers)| numbers.split_whitespace().nth(11)?.parse::<u64>().ok()).sum()
}

/// The counter of a protocol in `/proc/net/snmp`, where a line of names stands above one of numbers.
pub(super) fn counter(snmp: &str, protocol: &str, name: &str) -> Option<u64> {
    let lines = snmp.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(": "));
    let mut rows = lines.map(|line| line.split(' '));
    let place = rows.next()?.position(|other| other == name)?;
    rows.next()?.nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_name() {
        let text = "user_usec 5\nusage_usec 17\nVmHWM:\t  2048 kB\n";
        assert_eq!(field(text, "usage_usec"), Some(17));
        assert_eq!(field(text, "VmHWM:"), Some(2048));
        assert_eq!(field(text, "map_id:"), None);
    }

    #[test]
    fn time_that_is_idle_does_not_count() {
        let stat = "cpu  1 20 300 4000 50000 600000 7000000 80000000 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(ticks(stat), Some(7_600_321));
        assert_eq!(ticks("intr 5"), None);
    }

    #[test]
    fn time_of_programs_is_told_apart() {
        let program = "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 100 20 3000 400000 20 0 1 0";
        assert_eq!(ticks_of_program(program), Some(403_120));
        assert_eq!(ticks_of_program("14 (ksoftirqd/0) S 2 0 0 0 -1 0 0 0 0 0 1 2 3 4 20"), None);
    }

    #[test]
    fn drops_of_all_devices_count() {
        let dev = "Inter-|   Receive\n face |bytes\n  lo: 1 2 3 4 5 6 7 8 9 10 11 0 13 14 15 16\n\
                   eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\nv1: 1 2 3 4 5 6 7 8 9 10 11 30 13 14 15 16\n";
        assert_eq!(not_sent(dev), 42);
    }

    #[test]
    fn counters_stand_below_their_names() {
        let snmp = "Ip: Forwarding InReceives\nIp: 1 17\nTcp: ActiveOpens InSegs\nTcp: 3 99\n";
        assert_eq!(counter(snmp, "Tcp", "InSegs"), Some(99));
        assert_eq!(counter(snmp, "Ip", "InReceives"), Some(17));
        assert_eq!(counter(snmp, "Udp", "InDatagrams"), None);
    }
}

//! What the kernel tells in `/proc`: numbers behind names, maps that a process holds, processor time.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use nix::unistd::{SysconfVar, sysconf};

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
    let ticks = ticks(&stat).context("/proc/stat has no processor time")?;
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("the length of a tick is not known")?;
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// Those of user, nice, system, irq and softirq: neither idle nor waiting.
fn ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let numbers: Vec<u64> = line.split_whitespace().map_while(|number| number.parse().ok()).collect();
    [0, 1, 2, 5, 6].iter().map(|place| numbers.get(*place)).sum()
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
    fn counters_stand_below_their_names() {
        let snmp = "Ip: Forwarding InReceives\nIp: 1 17\nTcp: ActiveOpens InSegs\nTcp: 3 99\n";
        assert_eq!(counter(snmp, "Tcp", "InSegs"), Some(99));
        assert_eq!(counter(snmp, "Ip", "InReceives"), Some(17));
        assert_eq!(counter(snmp, "Udp", "InDatagrams"), None);
    }
}

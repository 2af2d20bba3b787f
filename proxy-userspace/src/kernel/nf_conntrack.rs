//! What kube-proxy sets of nf_conntrack, netfilter's connection tracking. Our own does not
//! depend on it; the CNI and the host's firewall may, and find it as under kube-proxy.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread::available_parallelism,
    time::Duration,
};

const SYSCTLS: &str = "/proc/sys/net/netfilter";
const HASH_SIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// As in kube-proxy: machines with many CPUs do not need more.
const MOST: u64 = 1 << 20;

/// Connections for each bucket of the hash table, as in kube-proxy.
const LOAD: u64 = 4;

/// What is wanted of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NfConntrack {
    /// Connections for each CPU, and the least in all; none leaves the table as it is.
    pub max: Option<(u32, u32)>,
    /// Idle established TCP connections; zero, here and below, leaves it as it is.
    pub tcp_established: Duration,
    /// TCP connections in CLOSE_WAIT.
    pub tcp_close_wait: Duration,
    /// Packets out of window are not invalid.
    pub tcp_be_liberal: bool,
    /// UDP flows that saw packets one way.
    pub udp: Duration,
    /// UDP flows that saw packets both ways.
    pub udp_stream: Duration,
}

/// A value that could not be set.
#[derive(Debug)]
pub struct Unset {
    /// The file.
    pub path: PathBuf,
    /// The value it should have.
    pub value: u64,
    /// The system's reason.
    pub error: io::Error,
}

impl NfConntrack {
    /// Sets what differs, in the network namespace of the process. Returns what could not be
    /// set; nothing if the kernel tracks no connections.
    pub fn set(&self) -> Vec<Unset> {
        let folder = Path::new(SYSCTLS);
        if !folder.join("nf_conntrack_max").exists() {
            return Vec::new();
        }
        let mut unset: Vec<_> = self
            .values()
            .into_iter()
            .filter_map(|(name, value)| write(folder.join(name), value, |now| now != value).err())
            .collect();
        unset.extend(self.max.and_then(|(per_core, least)| raise(folder, max(per_core, least)).err()));
        unset
    }

    fn values(&self) -> Vec<(&'static str, u64)> {
        let timeouts = [
            ("nf_conntrack_tcp_timeout_established", self.tcp_established),
            ("nf_conntrack_tcp_timeout_close_wait", self.tcp_close_wait),
            ("nf_conntrack_udp_timeout", self.udp),
            ("nf_conntrack_udp_timeout_stream", self.udp_stream),
        ];
        let mut values: Vec<_> = timeouts.map(|(name, timeout)| (name, timeout.as_secs())).into();
        values.retain(|(_, seconds)| *seconds > 0);
        values.extend(self.tcp_be_liberal.then_some(("nf_conntrack_tcp_be_liberal", 1)));
        values
    }
}

fn max(per_core: u32, least: u32) -> u64 {
    let cores = available_parallelism().map_or(1, |cores| cores.get() as u64);
    (u64::from(per_core) * cores).max(least.into()).min(MOST.max(least.into()))
}

/// A table that somebody has made larger stays so. Only the host's own namespace may change it,
/// and the hash table is that of all.
fn raise(folder: &Path, max: u64) -> Result<(), Unset> {
    if write(folder.join("nf_conntrack_max"), max, |now| now < max)? {
        write(HASH_SIZE.into(), max / LOAD, |now| now < max / LOAD)?;
    }
    Ok(())
}

/// Writes a value unless it is `wanted` no more, and tells whether it was written.
fn write(path: PathBuf, value: u64, wanted: impl Fn(u64) -> bool) -> Result<bool, Unset> {
    let now = fs::read_to_string(&path).map(|text| text.trim().parse::<u64>().unwrap_or(0));
    match now.and_then(|now| {
        if wanted(now) { fs::write(&path, value.to_string()).map(|()| true) } else { Ok(false) }
    }) {
        Ok(written) => Ok(written),
        Err(error) => Err(Unset { path, value, error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for() {
        assert_eq!(NfConntrack::default().values(), []);
        let some =
            NfConntrack { udp: Duration::from_secs(9), tcp_be_liberal: true, ..NfConntrack::default() };
        assert_eq!(some.values(), [("nf_conntrack_udp_timeout", 9), ("nf_conntrack_tcp_be_liberal", 1)]);
        assert_eq!(max(1, 500_000), 500_000);
        assert_eq!(max(u32::MAX, 1), MOST);
    }

    #[test]
    fn values_are_written_once_and_failures_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, "5\n").unwrap();
        assert!(write(path.clone(), 7, |now| now != 7).unwrap());
        assert!(!write(path, 7, |now| now != 7).unwrap());
        assert!(write(folder.path().join("y"), 1, |_| true).is_err());
    }
}

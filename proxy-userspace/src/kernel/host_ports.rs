//! The ports that sockets of this host are given when they ask for none.

use std::{fs, io, ops::RangeInclusive, path::Path};

use super::error::KernelError;

const LOCAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// Ports of this network namespace, of IPv4 and IPv6 alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPorts {
    /// `net.ipv4.ip_local_port_range`: from here the kernel chooses.
    pub local: RangeInclusive<u16>,
    /// `net.ipv4.ip_local_reserved_ports`: these it leaves out.
    pub reserved: Vec<RangeInclusive<u16>>,
}

impl HostPorts {
    /// Reads what is set now.
    ///
    /// # Errors
    /// When one of the two cannot be read or understood.
    pub fn read() -> Result<Self, KernelError> {
        let local = read(LOCAL, |text| {
            let (first, last) = text.trim().split_once(char::is_whitespace)?;
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        })?;
        let reserved = read(RESERVED, |text| {
            text.trim().split(',').filter(|range| !range.is_empty()).map(range).collect()
        })?;
        Ok(Self { local, reserved })
    }

    /// The ports of `range` that sockets may be given too, from the first to the last.
    ///
    /// Masquerading does not look at sockets. Where both have a port towards one backend, the
    /// replies to the socket are taken for those of the masqueraded connection.
    pub fn shared_with(&self, range: &RangeInclusive<u16>) -> Option<RangeInclusive<u16>> {
        let free = |port: &u16| !self.reserved.iter().any(|reserved| reserved.contains(port));
        let mut shared = range.clone().filter(|port| self.local.contains(port) && free(port));
        let first = shared.next()?;
        Some(first..=shared.next_back().unwrap_or(first))
    }
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

fn read<T>(path: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, KernelError> {
    let read = fs::read_to_string(path);
    let parsed = read.and_then(|text| parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into()));
    parsed.map_err(|source| KernelError::File { what: "cannot read", path: Path::new(path).into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_not_shared() {
        let check = |reserved: &[&str], snat: RangeInclusive<u16>, expected| {
            let reserved = reserved.iter().map(|text| range(text).unwrap()).collect();
            let ports = HostPorts { local: 32_768..=60_999, reserved };
            assert_eq!(ports.shared_with(&snat), expected, "{ports:?} {snat:?}");
        };
        check(&[], 1024..=29_999, None);
        check(&[], 30_000..=40_000, Some(32_768..=40_000));
        check(&["35000-65535"], 30_000..=40_000, Some(32_768..=34_999));
        check(&["32768-40000", "50000"], 30_000..=40_000, None);
        check(&["32768-32768", "32770-40000"], 30_000..=40_000, Some(32_769..=32_769));
    }

    #[test]
    fn this_host_has_some() {
        let ports = HostPorts::read().unwrap();
        assert!(!ports.local.is_empty(), "{ports:?}");
    }
}

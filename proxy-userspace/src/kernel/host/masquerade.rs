//! Addresses behind which connections are masqueraded, by the device that they leave by.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use proxy_common::maps::devices::SNAT_ADDRESSES;

use super::{DevicePolicy, Host, Link};

type Family = fn(&IpAddr) -> bool;

const FAMILIES: [(&str, Family); 2] = [("IPv4", IpAddr::is_ipv4), ("IPv6", IpAddr::is_ipv6)];

/// `masqueradeAddresses` asks for what this host does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MasqueradeFault {
    /// No address of this family.
    NoAddress {
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// More of this family than a device may have.
    TooMany {
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// Name of the device.
        device: String,
        /// Its addresses in these ranges.
        count: usize,
    },
}

impl fmt::Display for MasqueradeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress { family } => write!(
                f,
                "no {family} address of this node is in masqueradeAddresses: connections are masqueraded behind \
                 the address of the device that they leave by"
            ),
            Self::TooMany { family, device, count } => write!(
                f,
                "{device} has {count} {family} addresses in masqueradeAddresses: connections are masqueraded \
                 behind the first {SNAT_ADDRESSES}"
            ),
        }
    }
}

impl Host {
    /// What stands against these ranges as `masqueradeAddresses`.
    pub fn masquerade_faults(&self, ranges: &[IpNet]) -> Vec<MasqueradeFault> {
        let mut faults = Vec::new();
        for (family, is_of) in FAMILIES {
            if !ranges.iter().any(|range| is_of(&range.addr())) {
                continue;
            }
            let of = |link: &Link| self.configured(ranges, is_of, |ifindex| ifindex == link.ifindex).len();
            let counts = self.links.values().map(|link| (link, of(link)));
            match counts.max_by_key(|(_, count)| *count) {
                Some((link, count)) if count > SNAT_ADDRESSES => {
                    faults.push(MasqueradeFault::TooMany { family, device: link.name.clone(), count });
                }
                Some((_, count)) if count > 0 => {}
                _ => faults.push(MasqueradeFault::NoAddress { family }),
            }
        }
        faults
    }

    /// The configured ones of the device, else of its master. Where these have none, an uplink, and a device
    /// without addresses, has those of any: addresses that a router sends to this node may be the loopback
    /// device's, and pods' links often have none. Else the one that MASQUERADE would choose.
    pub(super) fn masquerade_addresses(
        &self,
        link: &Link,
        is_uplink: bool,
        node_addresses: &[IpAddr],
        policy: &impl DevicePolicy,
    ) -> Vec<IpAddr> {
        let ranges = policy.masquerade_ranges();
        let of_family = |(_, is_of): (_, Family)| {
            let is_own = |ifindex: u32| ifindex == link.ifindex;
            let is_masters = |ifindex: u32| Some(ifindex) == link.master;
            let has_own = self.of(is_of, |ifindex| is_own(ifindex) || is_masters(ifindex)).next().is_some();
            let mut found = self.configured(ranges, is_of, is_own);
            if found.is_empty() {
                found = self.configured(ranges, is_of, is_masters);
            }
            if found.is_empty() && (is_uplink || !has_own) {
                found = self.configured(ranges, is_of, |_| true);
            }
            if found.is_empty() {
                found.extend(self.usual_address(link, node_addresses, is_of));
            }
            found
        };
        FAMILIES.into_iter().flat_map(of_family).collect()
    }

    /// Addresses of these devices in the ranges.
    fn configured(&self, ranges: &[IpNet], is_of: Family, is_on: impl Fn(u32) -> bool) -> Vec<IpAddr> {
        self.of(is_of, is_on).filter(|addr| ranges.iter().any(|range| range.contains(addr))).collect()
    }

    /// Addresses of these devices, in the kernel's order, but for loopback addresses.
    fn of(&self, is_of: Family, is_on: impl Fn(u32) -> bool) -> impl Iterator<Item = IpAddr> {
        let on = self.addresses.iter().filter(move |(ifindex, _)| is_on(*ifindex)).map(|(_, addr)| *addr);
        on.filter(move |addr| is_of(addr) && !addr.is_loopback())
    }

    /// What MASQUERADE would choose (`inet_select_addr`): an address of the device, else of its
    /// master, else the node's own, else any of an uplink, else any.
    fn usual_address(&self, link: &Link, node_addresses: &[IpAddr], is_of: Family) -> Option<IpAddr> {
        let on = |ifindex: u32| self.of(is_of, move |other| other == ifindex).next();
        let owned = || self.of(is_of, |_| true);
        on(link.ifindex)
            .or_else(|| link.master.and_then(on))
            .or_else(|| node_addresses.iter().copied().find(|a| owned().any(|o| o == *a)))
            .or_else(|| self.default_routes.iter().find_map(|i| on(*i)))
            .or_else(|| owned().next())
    }
}

//! Settings and limits of the host's own stack that services depend on, and what this process
//! may do.

use std::fs;

/// What was found; none is what cannot be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// `net.ipv4.ip_forward`.
    pub forwards_v4: Option<bool>,
    /// `net.ipv6.conf.all.forwarding`; none where IPv6 is off.
    pub forwards_v6: Option<bool>,
    /// `net.ipv4.conf.all.route_localnet`, which kube-proxy sets for NodePorts on loopback.
    pub route_localnet: Option<bool>,
    /// Entries of nf_conntrack, and how many there may be.
    pub nf_conntrack: Option<(u64, u64)>,
    /// Capabilities that the agent needs and that this process lacks.
    pub lacks: Vec<&'static str>,
}

/// The bits of `CapEff` (proc_pid_status(5), linux/capability.h). The last one stands for those
/// that were split off it.
const NET_ADMIN: (u32, &str) = (12, "CAP_NET_ADMIN");
const PERFMON: (u32, &str) = (38, "CAP_PERFMON");
const BPF: (u32, &str) = (39, "CAP_BPF");
const SYS_ADMIN: u32 = 21;

/// Looks at them.
pub fn stack() -> Stack {
    Stack {
        forwards_v4: flag("/proc/sys/net/ipv4/ip_forward"),
        forwards_v6: flag("/proc/sys/net/ipv6/conf/all/forwarding"),
        route_localnet: flag("/proc/sys/net/ipv4/conf/all/route_localnet"),
        nf_conntrack: number("/proc/sys/net/netfilter/nf_conntrack_count")
            .zip(number("/proc/sys/net/netfilter/nf_conntrack_max")),
        lacks: lacks(&fs::read_to_string("/proc/self/status").unwrap_or_default()),
    }
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn flag(path: &str) -> Option<bool> {
    number(path).map(|value| value != 0)
}

fn lacks(status: &str) -> Vec<&'static str> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(bits) = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()) else {
        return Vec::new();
    };
    let has = |bit: u32| bits & (1 << bit) != 0;
    let lacks = |(bit, _): &(u32, &str)| !has(*bit) && (*bit == NET_ADMIN.0 || !has(SYS_ADMIN));
    [NET_ADMIN, BPF, PERFMON].iter().filter(|capability| lacks(capability)).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_capabilities_contain_the_new() {
        let status = |bits: u64| format!("Name:\tx\nCapEff:\t{bits:016x}\n");
        assert_eq!(lacks(&status(0)), ["CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON"]);
        assert!(lacks(&status(1 << 12 | 1 << 38 | 1 << 39)).is_empty());
        assert!(lacks(&status(1 << 12 | 1 << 21)).is_empty());
        assert_eq!(lacks(&status(1 << 21)), ["CAP_NET_ADMIN"]);
    }
}

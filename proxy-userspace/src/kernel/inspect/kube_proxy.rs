//! Traces of kube-proxy: its process, and its rules in nftables, iptables and IPVS. The kubelet
//! makes chains of its own, which are none.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::kernel::netfilter::{LegacyRules, RuleSet, Ruler, kube_proxy_rules, legacy_rules};

/// The device that carries the addresses of services in IPVS mode.
const IPVS_DEVICE: &str = "/sys/class/net/kube-ipvs0";

/// What is there of kube-proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeProxy {
    /// Its processes in this network namespace.
    pub processes: Vec<u32>,
    /// Its rules in nftables.
    pub rules: Vec<RuleSet>,
    /// Its rules in the tables of the old iptables.
    pub legacy: Vec<LegacyRules>,
    /// Its device of IPVS mode is there.
    pub ipvs: bool,
}

impl KubeProxy {
    /// Looks for it. What the kernel does not have cannot be there.
    pub fn find() -> Self {
        Self {
            processes: processes(),
            rules: kube_proxy_rules().unwrap_or_default(),
            legacy: legacy_rules(),
            ipvs: Path::new(IPVS_DEVICE).exists(),
        }
    }

    /// True if it has rules of any kind here.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty() || !self.legacy.is_empty() || self.ipvs
    }

    /// The mode that its rules are of.
    pub fn mode(&self) -> Option<&'static str> {
        let has = |ruler| self.rules.iter().any(|set| set.ruler == ruler);
        match () {
            () if self.ipvs => Some("ipvs"),
            () if has(Ruler::Nftables) => Some("nftables"),
            () if has(Ruler::Iptables) => Some("iptables"),
            () if !self.legacy.is_empty() => Some("iptables (legacy)"),
            () => None,
        }
    }

    /// What there is, in words.
    pub fn traces(&self) -> Vec<String> {
        let mut traces: Vec<String> =
            self.processes.iter().map(|id| format!("it runs as process {id}")).collect();
        for set in &self.rules {
            let (family, table) = (set.family.name(), &set.table);
            let count = set.rules + set.jumps.len();
            traces.push(match set.ruler {
                Ruler::Nftables => format!("nftables has its table {family} {table} with {count} rules"),
                Ruler::Iptables => format!("iptables has {count} rules of it in {family} {table}"),
            });
        }
        for legacy in &self.legacy {
            traces.push(match legacy.rules {
                Some(_) => format!("{} has rules of it", legacy.tool),
                None => format!("tables of {} are in use that only that program can show", legacy.tool),
            });
        }
        if self.ipvs {
            traces.push("IPVS has its device kube-ipvs0".into());
        }
        traces
    }
}

/// Its processes in this network namespace.
fn processes() -> Vec<u32> {
    let Ok(own) = fs::read_link("/proc/self/ns/net") else { return Vec::new() };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        fs::read_link(path.join("ns/net")).is_ok_and(|ns| ns == own)
            && fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "kube-proxy")
            // One that has ended and was not waited for runs no more.
            && fs::read_to_string(path.join("stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    all.filter(is_it).filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect()
}

//! Rules of kube-proxy in the tables of the old iptables, which only their own tool can read
//! and change. Whether there can be any is seen without it.

use std::{fs, process::Command};

/// The tables of the old iptables that this network namespace has in use, by family.
const TABLES: [(&str, &str); 2] =
    [("/proc/net/ip_tables_names", "iptables-legacy"), ("/proc/net/ip6_tables_names", "ip6tables-legacy")];

/// What became of looking for rules of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyRules {
    /// The program that works on them.
    pub tool: &'static str,
    /// Lines of its listing that mention kube-proxy's chains; none if the tool is not there.
    pub rules: Option<usize>,
}

/// The families with rules of kube-proxy, or with tables that nobody can look into.
pub fn legacy_rules() -> Vec<LegacyRules> {
    let mut found = Vec::new();
    for (path, tool) in TABLES {
        // The file is there while the module is; it names a table once somebody has used it here.
        let names = fs::read_to_string(path).unwrap_or_default();
        if !names.lines().any(|name| name == "nat") {
            continue;
        }
        let listing = Command::new(format!("{tool}-save")).output();
        let rules = listing.ok().filter(|listing| listing.status.success()).map(|listing| {
            let text = String::from_utf8_lossy(&listing.stdout).into_owned();
            text.lines().filter(|line| line.contains("KUBE-SERVICES") || line.contains("KUBE-SVC-")).count()
        });
        if rules != Some(0) {
            found.push(LegacyRules { tool, rules });
        }
    }
    found
}

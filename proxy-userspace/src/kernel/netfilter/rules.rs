//! Rules of kube-proxy in the kernel's nftables: those of its nftables mode, and those of its
//! iptables mode where `iptables` writes nftables, as all current distributions have it.
//!
//! What is whose is told by names, as kube-proxy's own cleanup does (`pkg/proxy/*/cleanup.go`).
//! The kubelet has chains of its own that begin with `KUBE-`, too: they stay.

use std::io;

use netlink_packet_netfilter::{
    NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    nftables::{
        ChainAttribute, ChainMessage, DataAttribute, ExpressionAttribute, Expressions, Immediate,
        ListAttribute, NfTablesMessage, RuleAttribute, RuleMessage, TableAttribute, TableMessage,
        VerdictAttribute,
    },
};

use super::{dump, transaction::Transaction};
use crate::kernel::KernelError;

/// The table of kube-proxy's nftables mode.
const OWN_TABLE: &str = "kube-proxy";
/// The tables of iptables that it writes to.
const IPTABLES: [&str; 3] = ["nat", "filter", "mangle"];

/// Chains of its iptables and ipvs modes.
const CHAINS: [&str; 13] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-MARK-MASQ",
    "KUBE-FORWARD",
    "KUBE-PROXY-FIREWALL",
    "KUBE-PROXY-CANARY",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-NODE-PORT",
    "KUBE-LOAD-BALANCER",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];
/// What the names of its chains for one service or endpoint begin with.
const PREFIXES: [&str; 6] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-", "KUBE-XLB-"];

/// Which way kube-proxy wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruler {
    /// A table of its own.
    Nftables,
    /// Chains in the tables of iptables.
    Iptables,
}

/// A family of nftables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    /// `ip`.
    V4,
    /// `ip6`.
    V6,
}

impl IpFamily {
    const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// As `nft` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    fn netlink(self) -> NetfilterProtoFamily {
        match self {
            Self::V4 => NetfilterProtoFamily::IPv4,
            Self::V6 => NetfilterProtoFamily::IPv6,
        }
    }
}

/// kube-proxy's part of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet {
    /// The way they are written.
    pub ruler: Ruler,
    /// The family of the table.
    pub family: IpFamily,
    /// Name of the table.
    pub table: String,
    /// Its chains there.
    pub chains: Vec<String>,
    /// Rules in them.
    pub rules: usize,
    /// Rules of other chains that lead to its own: chain and handle.
    pub jumps: Vec<(String, u64)>,
}

/// True for a chain that kube-proxy made in a table of iptables.
fn is_kube_proxys(chain: &str) -> bool {
    CHAINS.contains(&chain) || PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

/// All there is, table by table.
///
/// # Errors
/// When the kernel does not show its nftables. One that has none has no rules in them.
pub fn kube_proxy_rules() -> Result<Vec<RuleSet>, KernelError> {
    match read() {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
        result => {
            result.map_err(|source| KernelError::System { what: "read the rules of nftables".into(), source })
        }
    }
}

fn read() -> io::Result<Vec<RuleSet>> {
    let mut found = Vec::new();
    for family in IpFamily::ALL {
        for table in tables(family)? {
            let own = table == OWN_TABLE;
            if !own && !IPTABLES.contains(&table.as_str()) {
                continue;
            }
            let mut chains = chains(family, &table)?;
            if !own {
                chains.retain(|chain| is_kube_proxys(chain));
            }
            if own || !chains.is_empty() {
                found.push(look_into(family, table, own, chains)?);
            }
        }
    }
    Ok(found)
}

fn look_into(family: IpFamily, table: String, own: bool, chains: Vec<String>) -> io::Result<RuleSet> {
    let ruler = if own { Ruler::Nftables } else { Ruler::Iptables };
    let mut set = RuleSet { ruler, family, table, chains, rules: 0, jumps: Vec::new() };
    let in_table = RuleMessage { attributes: vec![RuleAttribute::Table(set.table.clone())] };
    let mut rules = Vec::new();
    dump(family.netlink(), NfTablesMessage::GetRule(in_table), |message| rules.extend(rule(message)))?;
    for rule in rules {
        if own || is_kube_proxys(&rule.chain) {
            set.rules += 1;
        } else if rule.leads_to.iter().any(|chain| is_kube_proxys(chain)) {
            set.jumps.push((rule.chain, rule.handle));
        }
    }
    Ok(set)
}

fn tables(family: IpFamily) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let all = TableMessage { attributes: Vec::new() };
    dump(family.netlink(), NfTablesMessage::GetTable(all), |message| {
        let NetfilterMessageInner::NfTables(NfTablesMessage::NewTable(table)) = message.inner else { return };
        let name = |attribute| if let TableAttribute::Name(name) = attribute { Some(name) } else { None };
        names.extend(table.attributes.into_iter().find_map(name));
    })?;
    Ok(names)
}

fn chains(family: IpFamily, table: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let all = ChainMessage { attributes: Vec::new() };
    dump(family.netlink(), NfTablesMessage::GetChain(all), |message| {
        let NetfilterMessageInner::NfTables(NfTablesMessage::NewChain(chain)) = message.inner else { return };
        let (mut here, mut called) = (false, None);
        for attribute in chain.attributes {
            match attribute {
                ChainAttribute::Table(name) => here = name == table,
                ChainAttribute::Name(name) => called = Some(name),
                _ => {}
            }
        }
        names.extend(called.filter(|_| here));
    })?;
    Ok(names)
}

struct Rule {
    chain: String,
    handle: u64,
    /// Chains it jumps to.
    leads_to: Vec<String>,
}

fn rule(message: NetfilterMessage) -> Option<Rule> {
    let NetfilterMessageInner::NfTables(NfTablesMessage::NewRule(rule)) = message.inner else { return None };
    let mut found = Rule { chain: String::new(), handle: 0, leads_to: Vec::new() };
    for attribute in rule.attributes {
        match attribute {
            RuleAttribute::Chain(name) => found.chain = name,
            RuleAttribute::Handle(handle) => found.handle = handle,
            RuleAttribute::Expressions(list) => {
                found.leads_to = list.into_iter().filter_map(verdict).collect()
            }
            _ => {}
        }
    }
    Some(found)
}

/// The chain that an expression jumps to.
fn verdict(expression: ListAttribute<ExpressionAttribute>) -> Option<String> {
    let ListAttribute::Element(attributes) = expression else { return None };
    let data = attributes.into_iter().find_map(|attribute| match attribute {
        ExpressionAttribute::Data(Expressions::Immediate(immediates)) => Some(immediates),
        _ => None,
    })?;
    let verdict = data.into_iter().find_map(|immediate| match immediate {
        Immediate::Data(DataAttribute::Verdict(verdict)) => Some(verdict),
        _ => None,
    })?;
    verdict
        .into_iter()
        .find_map(|part| if let VerdictAttribute::Chain(name) = part { Some(name) } else { None })
}

/// Removes these rules and chains, each table at once. Rules of others stay; the tables of
/// iptables do, too.
///
/// # Errors
/// When the kernel refuses, for example because a rule has come or gone since they were read.
pub fn remove_rules(sets: &[RuleSet]) -> Result<(), KernelError> {
    for set in sets {
        removal(set).commit().map_err(|source| KernelError::System {
            what: format!("remove kube-proxy's rules from the table {} {}", set.family.name(), set.table),
            source,
        })?;
    }
    Ok(())
}

fn removal(set: &RuleSet) -> Transaction {
    let (mut change, family) = (Transaction::default(), set.family.netlink());
    if set.ruler == Ruler::Nftables {
        let table = TableMessage { attributes: vec![TableAttribute::Name(set.table.clone())] };
        change.delete(family, NfTablesMessage::DeleteTable(table));
        return change;
    }
    let rules_of =
        |chain: &String| vec![RuleAttribute::Table(set.table.clone()), RuleAttribute::Chain(chain.clone())];
    for (chain, handle) in &set.jumps {
        let mut attributes = rules_of(chain);
        attributes.push(RuleAttribute::Handle(*handle));
        change.delete(family, NfTablesMessage::DeleteRule(RuleMessage { attributes }));
    }
    // They lead to each other: first all become empty.
    for chain in &set.chains {
        change.delete(family, NfTablesMessage::DeleteRule(RuleMessage { attributes: rules_of(chain) }));
    }
    for chain in &set.chains {
        let attributes = vec![ChainAttribute::Table(set.table.clone()), ChainAttribute::Name(chain.clone())];
        change.delete(family, NfTablesMessage::DeleteChain(ChainMessage { attributes }));
    }
    change
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_the_kubelet_are_not_kube_proxys() {
        for chain in
            ["KUBE-SERVICES", "KUBE-SVC-ERIFXISQEP7F7OF4", "KUBE-SEP-IT2ZTR26TO4XFPTO", "KUBE-MARK-MASQ"]
        {
            assert!(is_kube_proxys(chain), "{chain}");
        }
        for chain in
            ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-MARK-DROP", "KUBE-ROUTER-INPUT", "cali-PREROUTING"]
        {
            assert!(!is_kube_proxys(chain), "{chain}");
        }
    }
}

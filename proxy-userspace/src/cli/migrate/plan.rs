//! What there is to migrate, what is in the way, and the steps. Pure.

use std::fmt;

use serde::Serialize;

use crate::kernel::{KubeProxy, Ruler};

/// Which way services go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From kube-proxy to shunt.
    TakeOver,
    /// From shunt to kube-proxy.
    Back,
}

/// All that was looked at.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// What is there of kube-proxy.
    pub kube_proxy: KubeProxy,
    /// An agent runs.
    pub agent_runs: bool,
    /// Devices that carry both tc programs.
    pub devices: usize,
    /// Rows of `frontends`.
    pub frontends: usize,
    /// Connections whose destination netfilter translates.
    pub netfilter_connections: usize,
    /// Connections that the programs translate.
    pub translated: usize,
}

/// What there is and what is to be done.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Which way services go.
    pub direction: Direction,
    /// kube-proxy's processes in this network namespace.
    pub kube_proxy_processes: Vec<u32>,
    /// The mode that its rules are of.
    pub mode: Option<&'static str>,
    /// Its rules.
    pub rules: Vec<Rules>,
    /// An agent runs.
    pub agent_runs: bool,
    /// Devices that carry both tc programs.
    pub devices: usize,
    /// Addresses and ports that the programs serve.
    pub frontends: usize,
    /// Connections whose destination netfilter translates; hostPorts of pods are among them.
    pub netfilter_connections: usize,
    /// Connections that the programs translate.
    pub shunt_connections: usize,
    /// What has to be done before, by you.
    pub obstacles: Vec<String>,
    /// What is done then.
    pub steps: Vec<String>,
}

/// kube-proxy's part of one table.
#[derive(Debug, Serialize)]
pub struct Rules {
    /// The table with its family.
    pub table: String,
    /// Rules there.
    pub rules: usize,
    /// Chains there.
    pub chains: usize,
}

/// How kube-proxy is stopped where it usually runs.
const HOW_TO_STOP: &str = "as a DaemonSet: kubectl -n kube-system patch daemonset kube-proxy -p \
    '{\"spec\":{\"template\":{\"spec\":{\"nodeSelector\":{\"shunt.dev/none\":\"true\"}}}}}'; as a service: \
    systemctl disable --now kube-proxy; inside k3s: restart it with --disable-kube-proxy";

impl Plan {
    /// What follows from the facts.
    pub fn new(direction: Direction, facts: Facts) -> Self {
        let (obstacles, steps) = match direction {
            Direction::TakeOver => (before_taking_over(&facts), take_over(&facts)),
            Direction::Back => (before_giving_back(&facts), give_back(&facts)),
        };
        let Facts { kube_proxy, .. } = facts;
        let rules = kube_proxy.rules.iter().map(|set| Rules {
            table: format!("{} {}", set.family.name(), set.table),
            rules: set.rules + set.jumps.len(),
            chains: set.chains.len(),
        });
        Self {
            direction,
            mode: kube_proxy.mode(),
            rules: rules.collect(),
            kube_proxy_processes: kube_proxy.processes,
            agent_runs: facts.agent_runs,
            devices: facts.devices,
            frontends: facts.frontends,
            netfilter_connections: facts.netfilter_connections,
            shunt_connections: facts.translated,
            obstacles,
            steps,
        }
    }
}

fn before_taking_over(facts: &Facts) -> Vec<String> {
    let mut obstacles = Vec::new();
    if !facts.agent_runs {
        obstacles.push("no agent runs: start it beside kube-proxy; connections that are open stay".into());
    } else if facts.devices == 0 || facts.frontends == 0 {
        obstacles.push(format!(
            "the agent is not ready: {} devices carry its programs, {} frontends are served; its log says why",
            facts.devices, facts.frontends
        ));
    }
    if let [first, ..] = facts.kube_proxy.processes[..] {
        obstacles.push(format!(
            "kube-proxy runs as process {first} and would write its rules again: stop it; {HOW_TO_STOP}"
        ));
    }
    obstacles
}

fn take_over(facts: &Facts) -> Vec<String> {
    let mut steps = Vec::new();
    if facts.netfilter_connections > 0 {
        steps.push(format!(
            "leave {} connections to netfilter until they end, and keep it translating them by the nftables table {}",
            facts.netfilter_connections,
            crate::kernel::KEEPER
        ));
    }
    for set in &facts.kube_proxy.rules {
        let (family, table) = (set.family.name(), &set.table);
        steps.push(match set.ruler {
            Ruler::Nftables => format!("delete the table {family} {table}"),
            Ruler::Iptables => format!(
                "delete {} chains of kube-proxy and {} jumps to them in {family} {table}; the kubelet's stay",
                set.chains.len(),
                set.jumps.len()
            ),
        });
    }
    for legacy in &facts.kube_proxy.legacy {
        steps.push(format!("by you: remove the rules of {} (`kube-proxy --cleanup`)", legacy.tool));
    }
    if facts.kube_proxy.ipvs {
        steps.push("by you: remove virtual servers and kube-ipvs0 (`kube-proxy --cleanup`)".into());
    }
    steps
}

fn before_giving_back(facts: &Facts) -> Vec<String> {
    let mut obstacles = Vec::new();
    if facts.kube_proxy.processes.is_empty() || !facts.kube_proxy.has_rules() {
        obstacles.push(
            "kube-proxy is not in charge: start it and wait for its rules; without them new connections would \
             go nowhere"
                .into(),
        );
    }
    if facts.agent_runs {
        obstacles
            .push("the agent runs and would take new connections again: stop it; its programs go on".into());
    }
    obstacles
}

fn give_back(facts: &Facts) -> Vec<String> {
    vec![
        "take no new connections: kube-proxy's rules get them".into(),
        format!("wait until {} connections have ended that the programs translate", facts.translated),
        "remove programs, links, maps and pins".into(),
    ]
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.mode.map(|mode| format!("rules of mode {mode}")).unwrap_or("no rules".into());
        let process = match self.kube_proxy_processes[..] {
            [first, ..] => format!("runs as process {first}"),
            [] => "does not run".into(),
        };
        writeln!(f, "kube-proxy   {process}, {mode}")?;
        for Rules { table, rules, chains } in &self.rules {
            writeln!(f, "             table {table}: {rules} rules in {chains} chains")?;
        }
        let agent = if self.agent_runs { "runs" } else { "does not run" };
        let Self { devices, frontends, .. } = self;
        writeln!(f, "agent        {agent}; programs on {devices} devices, {frontends} frontends")?;
        let (netfilter, shunt) = (self.netfilter_connections, self.shunt_connections);
        writeln!(f, "connections  {netfilter} translated by netfilter, {shunt} by shunt")?;
        let numbered = |f: &mut fmt::Formatter<'_>, title: &str, lines: &[String]| {
            lines.iter().enumerate().try_for_each(|(place, line)| {
                let title = if place == 0 { title } else { "" };
                write!(f, "\n{title:<12} {}. {line}", place + 1)
            })
        };
        numbered(f, "in the way", &self.obstacles)?;
        if self.steps.is_empty() {
            return write!(f, "\nto do        nothing: no rules of kube-proxy are left");
        }
        numbered(f, "to do", &self.steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{IpFamily, RuleSet};

    fn facts() -> Facts {
        let set = RuleSet {
            ruler: Ruler::Iptables,
            family: IpFamily::V4,
            table: "nat".into(),
            chains: vec!["KUBE-SERVICES".into(), "KUBE-SVC-X".into()],
            rules: 5,
            jumps: vec![("PREROUTING".into(), 7)],
        };
        Facts {
            kube_proxy: KubeProxy { rules: vec![set], ..KubeProxy::default() },
            agent_runs: true,
            devices: 3,
            frontends: 9,
            netfilter_connections: 4,
            translated: 2,
        }
    }

    #[test]
    fn a_ready_agent_takes_over_when_kube_proxy_is_gone() {
        let plan = Plan::new(Direction::TakeOver, facts());
        assert!(plan.obstacles.is_empty(), "{plan}");
        assert_eq!((plan.mode, plan.steps.len(), plan.rules[0].rules), (Some("iptables"), 2, 6));
        let still = KubeProxy { processes: vec![17], ..facts().kube_proxy };
        let plan = Plan::new(Direction::TakeOver, Facts { kube_proxy: still, ..facts() });
        assert!(plan.obstacles[0].contains("process 17"), "{plan}");
        for early in [Facts { agent_runs: false, ..facts() }, Facts { devices: 0, ..facts() }] {
            assert_eq!(Plan::new(Direction::TakeOver, early).obstacles.len(), 1);
        }
    }

    #[test]
    fn nothing_is_given_back_to_nobody() {
        let plan = Plan::new(Direction::Back, facts());
        assert_eq!(plan.obstacles.len(), 2, "{plan}");
        let runs = KubeProxy { processes: vec![17], ..facts().kube_proxy };
        let plan = Plan::new(Direction::Back, Facts { kube_proxy: runs, agent_runs: false, ..facts() });
        assert!(plan.obstacles.is_empty() && plan.to_string().contains("2 connections"), "{plan}");
    }
}

//! What the facts about a node mean. Pure.

use std::{net::SocketAddr, ops::RangeInclusive};

use serde::Serialize;

use crate::{
    config::{Config, Note},
    kernel::{
        DevicePrograms, KubeProxy, Listener, MasqueradeFault, SocketHook, Stack, System, XdpMode, XdpPolicy,
    },
    model::SocketLb,
};

/// The oldest kernel the programs are tested on.
const OLDEST: (u32, u32) = (6, 1);

/// Names by which programs of other replacements of kube-proxy begin, and whose they are.
const REPLACEMENTS: [(&str, &str); 4] =
    [("cil_sock", "Cilium"), ("calico_", "Calico"), ("cali_", "Calico"), ("kpng_", "kpng")];

/// Names by which programs at devices begin, whose they are, and what to make of that.
const DEVICE_PROGRAMS: [(&str, &str, State, &str); 2] = [
    ("cil_", "Cilium", State::Ok, "fine as a CNI, with kubeProxyReplacement off"),
    (
        "cali_",
        "Calico",
        State::Warning,
        "its eBPF dataplane translates services: switch to another (bpfEnabled: false)",
    ),
];

/// All that was looked at.
#[derive(Debug)]
pub struct Facts {
    /// The kernel and its file systems.
    pub system: System,
    /// The hooks of the cgroup.
    pub hooks: Vec<SocketHook>,
    /// Traces of kube-proxy.
    pub kube_proxy: KubeProxy,
    /// The host's own stack.
    pub stack: Stack,
    /// An agent runs.
    pub agent_runs: bool,
    /// Who listens on the ports of the agent.
    pub listeners: Vec<Listener>,
    /// Source ports of masquerading that sockets of the host may be given too.
    pub shared_ports: Option<RangeInclusive<u16>>,
    /// What stands against `masqueradeAddresses`.
    pub masquerade_faults: Vec<MasqueradeFault>,
    /// Devices and the programs there.
    pub devices: Vec<DevicePrograms>,
    /// What the agent is to do.
    pub config: Config,
}

/// What to make of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Works, not as well as it might.
    Warning,
    /// The agent would not start, or services would not work.
    Error,
}

impl State {
    /// The word in tables.
    pub fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warning => "warning",
            State::Error => "error",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub check: &'static str,
    /// How it is.
    pub state: State,
    /// In words.
    pub detail: String,
}

/// A finding for everything that was looked at, in a fixed order.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut found = vec![
        kernel(&facts.system),
        btf(&facts.system),
        bpffs(facts),
        cgroup(facts),
        tc(facts),
        xdp(facts),
        kube_proxy(facts),
        socket_hooks(facts),
        device_hooks(facts),
        capabilities(facts),
        forwarding(facts),
        nf_conntrack(facts),
    ];
    found.push(snat_ports(facts));
    found.extend(masquerade_addresses(facts));
    found.extend(port(facts, "health port", facts.config.health));
    found.extend(port(facts, "metrics port", facts.config.metrics));
    found.extend(facts.config.notes.iter().map(configuration));
    found
}

fn finding(check: &'static str, state: State, detail: impl Into<String>) -> Finding {
    Finding { check, state, detail: detail.into() }
}

/// A field that means something else than in kube-proxy, or nothing.
fn configuration(note: &Note) -> Finding {
    let state = if note.is_served() { State::Ok } else { State::Warning };
    finding("configuration", state, note.to_string())
}

fn kernel(system: &System) -> Finding {
    let (major, minor) = OLDEST;
    match system.version {
        Some(version) if version >= OLDEST => finding("kernel", State::Ok, &system.release),
        _ => {
            finding("kernel", State::Error, format!("{}: {major}.{minor} or newer is needed", system.release))
        }
    }
}

fn btf(system: &System) -> Finding {
    let missing =
        "no /sys/kernel/btf/vmlinux: the program that sweeps connections needs CONFIG_DEBUG_INFO_BTF";
    match system.btf {
        true => finding("BTF", State::Ok, "the kernel describes its types"),
        false => finding("BTF", State::Error, missing),
    }
}

fn bpffs(facts: &Facts) -> Finding {
    let path = facts.config.bpffs.display();
    match facts.system.bpffs {
        true => finding("bpffs", State::Ok, format!("{path}")),
        false => {
            let how = format!("{path} is on no BPF file system: mount -t bpf bpf /sys/fs/bpf");
            finding("bpffs", State::Error, how)
        }
    }
}

fn cgroup(facts: &Facts) -> Finding {
    match (&facts.system.cgroup, facts.config.model.socket_lb) {
        (Some(path), _) => finding("cgroup2", State::Ok, path.display().to_string()),
        (None, SocketLb::Off) => {
            finding("cgroup2", State::Warning, "none is mounted: others can bind the NodePorts of services")
        }
        (None, _) => finding("cgroup2", State::Error, "none is mounted; socketLB: off goes without"),
    }
}

fn tc(facts: &Facts) -> Finding {
    let offered = if facts.system.tcx { "TCX" } else { "clsact filters, as the kernel is older than 6.6" };
    let half: Vec<_> = facts.devices.iter().filter(|d| d.ingress.is_some() != d.egress.is_some()).collect();
    if let Some(device) = half.first() {
        let detail = format!("{} has one of the two programs: services do not work there", device.interface);
        return finding("tc", State::Error, detail);
    }
    let attached = facts.devices.iter().filter(|device| device.ingress.is_some()).count();
    finding("tc", State::Ok, format!("{offered}; attached to {attached} devices"))
}

fn xdp(facts: &Facts) -> Finding {
    let mut lost = facts.devices.iter().filter(|device| {
        device.noted.as_ref().is_some_and(|noted| noted.mode != XdpMode::None) && device.xdp == XdpMode::None
    });
    if let Some(device) = lost.next() {
        return finding("XDP", State::Warning, format!("{} has lost its program", device.interface));
    }
    let noted: Vec<_> = facts.devices.iter().filter_map(|device| device.noted.as_ref()).collect();
    let without = noted.iter().filter(|noted| noted.mode == XdpMode::None).count();
    let asked = noted.first().map_or(XdpPolicy::Off, |noted| noted.configured);
    let detail = match asked {
        XdpPolicy::Off => "off".into(),
        asked => {
            format!("{}; in force on {} of {} devices", asked.name(), noted.len() - without, noted.len())
        }
    };
    let short = asked == XdpPolicy::Native && without > 0;
    finding("XDP", if short { State::Warning } else { State::Ok }, detail)
}

/// Beside an agent it may run, and its rules may be there: packets meet the programs first. On
/// the way from one to the other that is how it has to be, and no state to stay in.
fn kube_proxy(facts: &Facts) -> Finding {
    let traces = facts.kube_proxy.traces();
    if traces.is_empty() {
        return finding("kube-proxy", State::Ok, "no trace of it");
    }
    let runs = !facts.kube_proxy.processes.is_empty();
    let state = if runs && !facts.agent_runs { State::Error } else { State::Warning };
    let what = if runs { "it translates too" } else { "its rules do nothing but cost time" };
    let detail = format!("{}; {what}: `shunt migrate` says how to go on", traces.join(", "));
    finding("kube-proxy", state, detail)
}

/// The programs of a replacement at devices are those of its CNI part as well.
fn device_hooks(facts: &Facts) -> Finding {
    let others = || facts.devices.iter().flat_map(|d| d.others.iter().map(move |other| (d, other)));
    let of = |(device, other): (&DevicePrograms, &String)| {
        let known = DEVICE_PROGRAMS.iter().find(|(prefix, ..)| other.starts_with(prefix))?;
        Some((device.interface.clone(), other.clone(), known))
    };
    match others().find_map(of) {
        Some((device, program, (_, whose, state, how))) => {
            let detail = format!("{whose} has {program} on {device}: {how}");
            finding("device programs", *state, detail)
        }
        None => finding("device programs", State::Ok, format!("{} of others beside ours", others().count())),
    }
}

fn capabilities(facts: &Facts) -> Finding {
    match &facts.stack.lacks[..] {
        [] => finding("capabilities", State::Ok, "this process has those that the agent needs"),
        lacks => {
            let detail = format!("this process lacks {}: run it as the agent is to run", lacks.join(", "));
            finding("capabilities", State::Error, detail)
        }
    }
}

/// Packets to backends elsewhere and to pods pass the host's own routing.
fn forwarding(facts: &Facts) -> Finding {
    let Stack { forwards_v4, forwards_v6, route_localnet, .. } = facts.stack;
    if forwards_v4 == Some(false) {
        let detail =
            "the host forwards no IPv4 packets, so pods are not reached: sysctl -w net.ipv4.ip_forward=1";
        return finding("forwarding", State::Error, detail);
    }
    if forwards_v6 == Some(false) {
        let detail =
            "the host forwards no IPv6 packets; with IPv6 pods: sysctl -w net.ipv6.conf.all.forwarding=1";
        return finding("forwarding", State::Warning, detail);
    }
    if route_localnet == Some(true) {
        let detail = "net.ipv4.conf.all.route_localnet is set, as kube-proxy left it: neighbours may reach what \
                      listens on loopback; shunt does not need it: set it to 0";
        return finding("forwarding", State::Warning, detail);
    }
    let v6 = if forwards_v6.is_some() { "IPv4 and IPv6" } else { "IPv4; IPv6 is off" };
    finding("forwarding", State::Ok, v6)
}

/// Packets that shunt has translated are still tracked by the host's firewall, if it has one.
fn nf_conntrack(facts: &Facts) -> Finding {
    match facts.stack.nf_conntrack {
        Some((used, most)) if used.saturating_mul(10) >= most.saturating_mul(8) => {
            let detail = format!(
                "{used} of {most} entries: new connections are dropped when it is full: raise net.netfilter.nf_conntrack_max"
            );
            finding("nf_conntrack", State::Warning, detail)
        }
        Some((used, most)) => finding("nf_conntrack", State::Ok, format!("{used} of {most} entries")),
        None => finding("nf_conntrack", State::Ok, "the kernel tracks no connections"),
    }
}

/// Programs of others at devices may be a CNI's; at the sockets they replace kube-proxy.
fn socket_hooks(facts: &Facts) -> Finding {
    let others = || facts.hooks.iter().flat_map(|hook| &hook.others);
    let whose = |program: &String| REPLACEMENTS.iter().find(|(prefix, _)| program.starts_with(prefix));
    if let Some((program, (_, whose))) = others().find_map(|program| Some((program, whose(program)?))) {
        let detail =
            format!("{whose} translates sockets ({program}): turn its replacement of kube-proxy off");
        return finding("sockets", State::Error, detail);
    }
    if let Some(first) = others().next() {
        return finding("sockets", State::Warning, format!("another program is at a hook: {first}"));
    }
    let ours = facts.hooks.iter().filter(|hook| hook.ours).count();
    finding("sockets", State::Ok, format!("{ours} of {} hooks attached", facts.hooks.len()))
}

/// A port of the agent's own.
fn port(facts: &Facts, check: &'static str, address: Option<SocketAddr>) -> Option<Finding> {
    let port = address?.port();
    let held = facts.listeners.iter().find(|listener| listener.port == port);
    Some(match held.map(|listener| listener.process.as_deref()) {
        None => finding(check, State::Ok, format!("{port} is free: no agent runs")),
        Some(Some("shunt")) => finding(check, State::Ok, format!("{port} is the agent's")),
        Some(holder) => {
            let holder = holder.unwrap_or("a process out of sight");
            finding(check, State::Error, format!("{holder} holds {port}"))
        }
    })
}

fn snat_ports(facts: &Facts) -> Finding {
    let model = &facts.config.model;
    let range = format!("{}-{}", model.snat_port_first, model.snat_port_last);
    match &facts.shared_ports {
        None => finding("SNAT ports", State::Ok, format!("{range}, of no use to sockets of this host")),
        Some(shared) => {
            let detail = format!(
                "sockets of this host are given {}-{} of {range} too: reserve them in \
                 net.ipv4.ip_local_reserved_ports",
                shared.start(),
                shared.end()
            );
            finding("SNAT ports", State::Warning, detail)
        }
    }
}

fn masquerade_addresses(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "masquerade addresses";
    let faults = facts.masquerade_faults.iter();
    let mut found: Vec<_> = faults.map(|fault| finding(CHECK, State::Warning, fault.to_string())).collect();
    if found.is_empty() && !facts.config.model.masquerade_addresses.is_empty() {
        found.push(finding(CHECK, State::Ok, "this node has those of masqueradeAddresses"));
    }
    found
}

#[cfg(test)]
mod tests;

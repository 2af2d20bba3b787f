//! What the facts about a node mean. Pure.

use std::{net::SocketAddr, ops::RangeInclusive};

use serde::Serialize;

use crate::{
    config::{Config, Note},
    kernel::{DevicePrograms, Listener, SocketHook, System, XdpMode, XdpPolicy},
    model::SocketLb,
};

/// The oldest kernel the programs are tested on.
const OLDEST: (u32, u32) = (6, 1);

/// Names by which programs of other replacements of kube-proxy begin, and whose they are.
const REPLACEMENTS: [(&str, &str); 4] =
    [("cil_sock", "Cilium"), ("calico_", "Calico"), ("cali_", "Calico"), ("kpng_", "kpng")];

/// All that was looked at.
#[derive(Debug)]
pub struct Facts {
    /// The kernel and its file systems.
    pub system: System,
    /// The hooks of the cgroup.
    pub hooks: Vec<SocketHook>,
    /// Traces of kube-proxy.
    pub kube_proxy: Vec<String>,
    /// Who listens on the ports of the agent.
    pub listeners: Vec<Listener>,
    /// Source ports of masquerading that sockets of the host may be given too.
    pub shared_ports: Option<RangeInclusive<u16>>,
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
        kube_proxy(&facts.kube_proxy),
        socket_hooks(facts),
    ];
    found.push(snat_ports(facts));
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
    match system.btf {
        true => finding("BTF", State::Ok, "the kernel describes its types"),
        false => finding("BTF", State::Warning, "no /sys/kernel/btf/vmlinux: bpftool shows maps as bytes"),
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

fn kube_proxy(traces: &[String]) -> Finding {
    if traces.is_empty() {
        return finding("kube-proxy", State::Ok, "no trace of it");
    }
    let detail = format!("{}; it translates too: remove it, then `kube-proxy --cleanup`", traces.join(", "));
    finding("kube-proxy", State::Error, detail)
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

#[cfg(test)]
mod tests;

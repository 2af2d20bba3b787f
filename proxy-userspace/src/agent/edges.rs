//! Keeps the programs at the edges as devices, addresses and routes of the host change.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::Result;
use ipnet::IpNet;
use proxy_common::maps::devices::Device;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::{
    config::{Config, InterfacePatterns, interfaces::InterfaceKind},
    kernel::{
        Datapath, DevicePolicy, Edge, EdgeChange, EdgeKind, Host, KernelMaps, MasqueradeFault, Netlink,
        Override, XdpMode, XdpPolicy, XdpStatus,
    },
    model::{DetectLocal, SocketLb},
    tasks::Tasks,
};

/// The edges as they were last followed.
pub(super) struct Edges {
    policy: Policy,
    /// Devices that refused the programs, to say so once.
    failed: BTreeSet<u32>,
    devices_failed: bool,
    /// What became of XDP on the devices, as it was last told.
    xdp: Vec<XdpStatus>,
    /// What stood against `masqueradeAddresses`, to say it once.
    masquerade: Vec<MasqueradeFault>,
}

/// What the configuration says about devices.
struct Policy {
    patterns: InterfacePatterns,
    detect_local: DetectLocal,
    /// Loopback carries packets to NodePorts.
    loopback: bool,
    /// `masqueradeAddresses`.
    masquerade: Box<[IpNet]>,
}

impl Edges {
    /// Nothing attached yet.
    pub(super) fn new(config: &Config) -> Self {
        let policy = Policy::of(config);
        Self {
            policy,
            failed: BTreeSet::new(),
            devices_failed: false,
            xdp: Vec::new(),
            masquerade: Vec::new(),
        }
    }

    /// Another configuration counts from the next [`Edges::follow`] on.
    pub(super) fn set_policy(&mut self, config: &Config) {
        self.policy = Policy::of(config);
    }

    /// Describes the devices to the programs and attaches those to the edges. What fails
    /// is tried again by the next call.
    pub(super) fn follow(
        &mut self,
        datapath: &mut Datapath,
        maps: &mut KernelMaps,
        host: &Host,
        node_addresses: &[IpAddr],
    ) {
        self.report_masquerade(host);
        let edges = host.edges(node_addresses, &self.policy);
        self.forget_gone(&edges);
        let plan = host.xdp_plan(&edges, &self.policy);
        let rows = |policy: &Policy, transmitters| host.devices(node_addresses, policy, transmitters);
        // Rows first: a program must know its device before it sees packets, and no frame may be
        // redirected to a device that loses its program.
        let mut transmitters = datapath.xdp_transmitters();
        transmitters.retain(|ifindex| plan.carries(*ifindex));
        let described = self.describe(maps, &rows(&self.policy, &transmitters));
        for change in datapath.follow(&edges) {
            self.report(change);
        }
        // A device has one XDP program only: it stays the earlier one until the connections are here.
        if datapath.is_taking_over() {
            return;
        }
        let statuses = datapath.follow_xdp(&plan);
        let after = datapath.xdp_transmitters();
        if described && after != transmitters {
            self.describe(maps, &rows(&self.policy, &after));
        }
        self.report_xdp(maps, statuses);
    }

    /// A device that has refused the programs and is gone, or no edge any more, was never attached to be detached.
    fn forget_gone(&mut self, edges: &[Edge]) {
        self.failed.retain(|ifindex| edges.iter().any(|edge| edge.target.ifindex == *ifindex));
    }

    /// Every edge has its programs.
    pub(super) fn are_attached(&self) -> bool {
        self.failed.is_empty()
    }

    /// What became of XDP on the devices.
    pub(super) fn xdp(&self) -> &[XdpStatus] {
        &self.xdp
    }

    fn describe(&mut self, maps: &mut KernelMaps, rows: &[(u32, Device)]) -> bool {
        let result = maps.replace_devices(rows);
        let failed_before = std::mem::replace(&mut self.devices_failed, result.is_err());
        match result {
            Ok(()) => return true,
            Err(error) if failed_before => debug!(%error, "cannot describe the devices"),
            Err(error) => warn!(%error, "cannot describe the devices; trying again"),
        }
        false
    }

    /// Says what is new, and leaves it where `shunt check` finds it.
    fn report_xdp(&mut self, maps: &mut KernelMaps, statuses: Vec<XdpStatus>) {
        if let Err(error) = maps.replace_xdp_status(&statuses) {
            debug!(%error, "cannot note what became of XDP");
        }
        for status in &statuses {
            let before = self.xdp.iter().find(|before| before.ifindex == status.ifindex);
            if before != Some(status) && (before.is_some() || status.configured != XdpPolicy::Off) {
                report_xdp(status);
            }
        }
        self.xdp = statuses;
    }

    fn report_masquerade(&mut self, host: &Host) {
        let faults = host.masquerade_faults(&self.policy.masquerade);
        for fault in faults.iter().filter(|fault| !self.masquerade.contains(fault)) {
            warn!("{fault}");
        }
        self.masquerade = faults;
    }

    fn report(&mut self, change: EdgeChange) {
        match change {
            EdgeChange::Attached(edge) => {
                self.failed.remove(&edge.target.ifindex);
                info!(interface = edge.target.name, kind = edge.kind.name(), "attached");
            }
            EdgeChange::Detached(target) => {
                self.failed.remove(&target.ifindex);
                info!(interface = target.name, "detached");
            }
            EdgeChange::Failed(edge, error) => {
                let (interface, kind) = (edge.target.name, edge.kind.name());
                if self.failed.insert(edge.target.ifindex) {
                    warn!(interface, kind, %error, "cannot attach; trying again");
                } else {
                    debug!(interface, kind, %error, "cannot attach");
                }
            }
        }
    }
}

fn report_xdp(status: &XdpStatus) {
    let XdpStatus { interface, reason, .. } = status;
    let (configured, mode) = (status.configured.name(), status.mode.name());
    match (status.mode, status.configured) {
        (XdpMode::None, XdpPolicy::Native) => warn!(interface, configured, mode, reason, "no XDP"),
        (XdpMode::None, _) => info!(interface, configured, mode, reason, "no XDP"),
        _ => info!(interface, configured, mode, reason, "XDP"),
    }
}

/// Loopback carries packets to NodePorts: without socket LB host processes reach them over it;
/// with it, those that are bound to a loopback address still do.
pub(super) fn serves_loopback(config: &Config) -> bool {
    let model = &config.model;
    model.socket_lb == SocketLb::Off || model.node_port_addresses.loopback().next().is_some()
}

impl Policy {
    fn of(config: &Config) -> Self {
        Self {
            patterns: config.interfaces.clone(),
            detect_local: config.model.detect_local.clone(),
            loopback: serves_loopback(config),
            masquerade: config.model.masquerade_addresses.clone(),
        }
    }
}

impl DevicePolicy for Policy {
    fn override_for(&self, name: &str) -> Option<Override> {
        Some(match self.patterns.kind(name)? {
            InterfaceKind::Ignore => Override::Ignore,
            InterfaceKind::Pod => Override::Edge(EdgeKind::Pod),
            InterfaceKind::Node => Override::Edge(EdgeKind::Node),
            InterfaceKind::Tunnel => Override::Edge(EdgeKind::Tunnel),
        })
    }

    /// netfilter sees a packet of a bridged pod come in by the bridge; the programs see it
    /// come in by the bridge's port.
    fn leads_to_pods(&self, name: &str, master: Option<&str>) -> bool {
        let names = [Some(name), master];
        let mut names = names.iter().flatten();
        match &self.detect_local {
            DetectLocal::BridgeInterface(bridge) => names.any(|name| name == bridge),
            DetectLocal::InterfaceNamePrefix(prefix) => names.any(|name| name.starts_with(prefix.as_str())),
            DetectLocal::Off | DetectLocal::ClusterCidr(_) | DetectLocal::NodeCidr => false,
        }
    }

    fn loopback_edge(&self) -> bool {
        self.loopback
    }

    fn masquerade_ranges(&self) -> &[IpNet] {
        &self.masquerade
    }
}

/// Reads the host's devices, addresses and routes now and whenever they change.
pub(super) async fn follow_host(mut netlink: Netlink, tasks: &mut Tasks) -> Result<watch::Receiver<Host>> {
    let (tx, rx) = watch::channel(netlink.host().await?);
    // A task of its own: waiting for changes must not be cut short, or one would be lost.
    tasks.spawn("the follower of devices", async move {
        // What could not be read is read with the next change.
        let mut missed = None;
        let mut before = tx.borrow().clone();
        while let Some(changed) = netlink.changed(&before).await {
            let changed = missed.map_or(changed, |missed| changed.max(missed));
            match netlink.host_after(changed, &before).await {
                Ok(host) => {
                    missed = None;
                    before = host.clone();
                    // Sent even if it is the same: devices that refused a program are tried again.
                    if tx.send(host).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    missed = Some(changed);
                    warn!(%error, "cannot read the host's devices; trying again");
                }
            }
        }
    });
    Ok(rx)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Overrides,
        kernel::{KernelError, Target},
    };

    fn policy(yaml: &str) -> Policy {
        Edges::new(&Config::parse(yaml, Overrides::default()).unwrap()).policy
    }

    #[test]
    fn a_device_that_refused_and_went_is_forgotten() {
        let mut edges = Edges::new(&Config::parse("", Overrides::default()).unwrap());
        let edge = |ifindex| Edge {
            target: Target { ifindex, name: format!("veth{ifindex}"), ethernet: true },
            kind: EdgeKind::Pod,
        };
        for ifindex in [3, 4] {
            let source = std::io::ErrorKind::NotFound.into();
            let error = KernelError::System { what: "attach".into(), source };
            edges.report(EdgeChange::Failed(edge(ifindex), error));
        }
        edges.forget_gone(&[edge(4), edge(5)]);
        assert!(!edges.are_attached(), "4 is there and refuses");
        edges.forget_gone(&[edge(5)]);
        assert!(edges.are_attached());
    }

    #[test]
    fn interface_modes() {
        let file = |fields: &str| {
            format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{fields}\n")
        };
        let bridge = policy(&file("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}"));
        assert!(bridge.leads_to_pods("cbr0", None) && bridge.leads_to_pods("veth1", Some("cbr0")));
        assert!(!bridge.leads_to_pods("cbr01", None));
        let prefix =
            policy(&file("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}"));
        assert!(prefix.leads_to_pods("veth", None) && prefix.leads_to_pods("veth9", None));
        assert!(!prefix.leads_to_pods("xveth", None));
        assert!(!policy("").leads_to_pods("veth9", None));
    }

    #[test]
    fn the_operators_word() {
        let policy = policy(
            "apiVersion: shunt.dev/v1alpha1\nkind: ShuntConfiguration\nsocketLB: 'off'\n\
             interfaces: {ignore: ['x*'], pod: ['p*'], node: [n0], tunnel: [t0]}\n",
        );
        assert_eq!(policy.override_for("x1"), Some(Override::Ignore));
        assert_eq!(policy.override_for("p1"), Some(Override::Edge(EdgeKind::Pod)));
        assert_eq!(policy.override_for("n0"), Some(Override::Edge(EdgeKind::Node)));
        assert_eq!(policy.override_for("t0"), Some(Override::Edge(EdgeKind::Tunnel)));
        assert_eq!(policy.override_for("eth0"), None);
        assert!(policy.loopback_edge());
    }
}

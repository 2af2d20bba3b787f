//! From the fields of the file to the values the agent works with.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

use ipnet::IpNet;
use serde_norway::Value;
use tracing_subscriber::EnvFilter;

use super::{
    Config, ConntrackTimeouts, Logging, Overrides, addresses,
    document::Documents,
    duration::GoDuration,
    errors::Problems,
    interfaces::InterfacePatterns,
    kube_proxy::{Ipvs, KubeProxyConfiguration, Nftables},
    shunt::ShuntConfiguration,
    unhonoured,
};
use crate::model::{DetectLocal, NodePortAddresses};

/// Builds the configuration. Where a value is wrong, `problems` says so and a default
/// stands in, so that the rest is still looked at.
pub(super) fn config(documents: &Documents, overrides: Overrides, problems: &mut Problems) -> Config {
    let (kube_proxy, shunt) = (&documents.kube_proxy, &documents.shunt);
    check_capacities(&shunt.maps, problems);
    let node_port_range = port_range("nodePortRange", &shunt.node_port_range, 30_000..=32_767, problems);
    let (sync_period, min_sync_period) = periods(kube_proxy, &documents.kube_proxy_fields);
    let (unspecified, loopback) = default_listeners(kube_proxy);
    let text = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
    Config {
        node_name: overrides.hostname.clone().or_else(|| text(&kube_proxy.hostname_override)),
        kubeconfig: overrides
            .kubeconfig
            .clone()
            .or_else(|| text(&kube_proxy.client_connection.kubeconfig).map(PathBuf::from)),
        model: model(kube_proxy, shunt, &overrides, &node_port_range, problems),
        node_port_range,
        timeouts: timeouts(kube_proxy),
        sync_period,
        min_sync_period,
        interfaces: InterfacePatterns::compile(&shunt.interfaces, problems),
        attach: shunt.attach,
        xdp: shunt.xdp,
        health: listen(
            &kube_proxy.healthz_bind_address,
            overrides.healthz_bind_address.as_deref().map(|text| ("--healthz-bind-address", text)),
            (unspecified, HEALTH_PORT).into(),
            problems,
        ),
        metrics: listen(
            &kube_proxy.metrics_bind_address,
            overrides.metrics_bind_address.as_deref().map(|text| ("--metrics-bind-address", text)),
            (loopback, METRICS_PORT).into(),
            problems,
        ),
        bind_hard_fail: kube_proxy.bind_address_hard_fail,
        maps: shunt.maps,
        bpffs: overrides.bpffs.clone().unwrap_or_else(|| shunt.bpffs.clone()),
        cgroup: overrides.cgroup.clone().or_else(|| shunt.cgroup.clone()),
        logging: logging(kube_proxy, shunt, overrides, problems),
        unhonoured: unhonoured::fields(kube_proxy),
        kube_proxy: kube_proxy.clone(),
        shunt: shunt.clone(),
    }
}

fn model(
    file: &KubeProxyConfiguration,
    shunt: &ShuntConfiguration,
    overrides: &Overrides,
    node_ports: &RangeInclusive<u16>,
    problems: &mut Problems,
) -> crate::model::Config {
    let snat_ports = port_range("snatPortRange", &shunt.snat_port_range, 1024..=29_999, problems);
    // A reply to a masqueraded connection that is forgotten would be taken for a client of the NodePort.
    let apart = snat_ports.end() < node_ports.start() || node_ports.end() < snat_ports.start();
    problems.check(apart, "snatPortRange", "overlaps nodePortRange: late replies would reach NodePorts");
    crate::model::Config {
        detect_local: detect_local(file, problems),
        masquerade_all: masquerade_all(file),
        node_port_addresses: node_port_addresses(&file.node_port_addresses, problems),
        socket_lb: overrides.socket_lb.unwrap_or(shunt.socket_lb).into(),
        answer_echo: shunt.answer_echo,
        load_balancer: shunt.load_balancer.into(),
        snat_port_first: *snat_ports.start(),
        snat_port_last: *snat_ports.end(),
    }
}

fn detect_local(file: &KubeProxyConfiguration, problems: &mut Problems) -> DetectLocal {
    let cidrs = cluster_cidrs(&file.cluster_cidr, problems);
    let names = &file.detect_local;
    let by_cidr = || if cidrs.is_empty() { DetectLocal::Off } else { DetectLocal::ClusterCidr(cidrs.into()) };
    match file.detect_local_mode.as_str() {
        "" | "ClusterCIDR" => by_cidr(),
        "NodeCIDR" => DetectLocal::NodeCidr,
        "BridgeInterface" => {
            let given = !names.bridge_interface.is_empty();
            problems.check(given, "detectLocal.bridgeInterface", "mode BridgeInterface needs a name");
            DetectLocal::BridgeInterface(names.bridge_interface.clone())
        }
        "InterfaceNamePrefix" => {
            let given = !names.interface_name_prefix.is_empty();
            problems.check(
                given,
                "detectLocal.interfaceNamePrefix",
                "mode InterfaceNamePrefix needs a prefix",
            );
            DetectLocal::InterfaceNamePrefix(names.interface_name_prefix.clone())
        }
        other => {
            let modes = "ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix";
            problems.add("detectLocalMode", format_args!("{other:?} is none of {modes}"));
            by_cidr()
        }
    }
}

fn cluster_cidrs(text: &str, problems: &mut Problems) -> Vec<IpNet> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut cidrs = Vec::<IpNet>::new();
    for part in text.split(',') {
        match addresses::cidr(part.trim()) {
            Some(cidr) => cidrs.push(cidr),
            None => problems.add("clusterCIDR", format_args!("{part:?} is not a CIDR")),
        }
    }
    let twice = cidrs.len() == 2 && cidrs[0].addr().is_ipv4() == cidrs[1].addr().is_ipv4();
    problems.check(cidrs.len() <= 2 && !twice, "clusterCIDR", "at most one CIDR of each family");
    cidrs
}

fn node_port_addresses(list: &[String], problems: &mut Problems) -> NodePortAddresses {
    if list.is_empty() || list == ["primary"] {
        return NodePortAddresses::Primary;
    }
    let mut ranges = Vec::new();
    for (i, text) in list.iter().enumerate() {
        match addresses::cidr(text) {
            Some(cidr) => ranges.push(cidr),
            None => problems.add(
                format!("nodePortAddresses[{i}]"),
                format_args!("{text:?} is not a CIDR, and not the single word primary"),
            ),
        }
    }
    NodePortAddresses::Ranges(ranges.into())
}

/// The section of the chosen mode counts; without a mode either may ask for it.
fn masquerade_all(file: &KubeProxyConfiguration) -> bool {
    match file.mode.as_str() {
        "iptables" => file.iptables.masquerade_all,
        "nftables" => file.nftables.masquerade_all,
        _ => file.iptables.masquerade_all || file.nftables.masquerade_all,
    }
}

/// The periods of the mode's section, or of the first section that sets them. kube-proxy's
/// least time between syncs of one second is for its cost; ours are small, so it counts
/// only where it was written down.
fn periods(file: &KubeProxyConfiguration, written: &Value) -> (Duration, Duration) {
    let order: &[&str] = match file.mode.as_str() {
        "iptables" => &["iptables"],
        "ipvs" => &["ipvs"],
        "nftables" => &["nftables"],
        _ => &["nftables", "iptables", "ipvs"],
    };
    let find = |field: &str| {
        let texts = order.iter().filter_map(|section| written.get(section)?.get(field)?.as_str());
        texts.filter_map(|t| t.parse::<GoDuration>().ok()).find(|d| !d.is_zero()).map(GoDuration::to_std)
    };
    let default = Nftables::default().sync_period.to_std();
    (find("syncPeriod").unwrap_or(default), find("minSyncPeriod").unwrap_or_default())
}

/// Zero leaves kube-proxy's kernel at its own value; here that is what comes next: first the
/// section `ipvs`, where the mode does not exclude it, for only who means it writes it; then
/// `conntrack`, which has values of its own when nothing is written; then our default.
fn timeouts(file: &KubeProxyConfiguration) -> ConntrackTimeouts {
    let default = ConntrackTimeouts::default();
    let or = |set: GoDuration, next| if set > GoDuration::default() { set.to_std() } else { next };
    let unset = Ipvs::default();
    let (ipvs, conntrack) = (if ipvs_counts(file) { &file.ipvs } else { &unset }, &file.conntrack);
    let close_wait = or(conntrack.tcp_close_wait_timeout, default.tcp_close_wait);
    let established = or(conntrack.tcp_established_timeout, default.tcp_established);
    ConntrackTimeouts {
        tcp_established: or(ipvs.tcp_timeout, established),
        tcp_close_wait: or(ipvs.tcp_fin_timeout, close_wait),
        tcp_closed: or(ipvs.tcp_fin_timeout, default.tcp_closed),
        udp: or(ipvs.udp_timeout, or(conntrack.udp_timeout, default.udp)),
        udp_stream: or(ipvs.udp_timeout, or(conntrack.udp_stream_timeout, default.udp_stream)),
    }
}

/// The section of the chosen mode counts; without a mode each of them does.
pub(super) fn ipvs_counts(file: &KubeProxyConfiguration) -> bool {
    matches!(file.mode.as_str(), "" | "ipvs")
}

/// An empty field is one that was not filled in, as in the file that kubeadm writes, and
/// stands for the default; an empty flag turns the server off. Both are kube-proxy's ways.
fn listen(
    field: &str,
    flag: Option<(&str, &str)>,
    default: SocketAddr,
    problems: &mut Problems,
) -> Option<SocketAddr> {
    let parse =
        |text: &str| text.parse().ok().or_else(|| Some(SocketAddr::new(text.parse().ok()?, default.port())));
    match flag {
        Some((_, "")) => None,
        Some((name, text)) => parse(text).filter(|address| address.port() != 0).or_else(|| {
            problems.add(name, "must be an IP address with a port of 1 to 65535");
            None
        }),
        // What is wrong in the file is reported where all its fields are checked.
        None => Some(parse(field).unwrap_or(default)),
    }
}

/// The family of `bindAddress` decides.
fn default_listeners(file: &KubeProxyConfiguration) -> (IpAddr, IpAddr) {
    match addresses::ip(&file.bind_address) {
        Some(IpAddr::V6(_)) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
        _ => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
    }
}

/// kube-proxy's, which load balancers of clouds are set up to ask.
const HEALTH_PORT: u16 = 10256;

/// kube-proxy's, which scrapers are set up to ask.
const METRICS_PORT: u16 = 10249;

fn port_range(
    path: &str,
    text: &str,
    default: RangeInclusive<u16>,
    problems: &mut Problems,
) -> RangeInclusive<u16> {
    let parse = || {
        let (first, last) = text.split_once('-')?;
        let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first != 0 && first <= last).then_some(first..=last)
    };
    parse().unwrap_or_else(|| {
        let (first, last) = (default.start(), default.end());
        problems.add(path, format_args!("{text:?} is not a range such as {first}-{last}"));
        default
    })
}

fn check_capacities(maps: &crate::kernel::Capacities, problems: &mut Problems) {
    for (path, rows) in [
        ("maps.frontends", maps.frontends),
        ("maps.backends", maps.backends),
        ("maps.slots", maps.slots),
        ("maps.conntrack", maps.conntrack),
        ("maps.socketFlows", maps.socket_flows),
        ("maps.services", maps.services),
        ("maps.affinity", maps.affinity),
    ] {
        problems.check(rows > 0, path, "must be more than 0");
    }
}

fn logging(
    file: &KubeProxyConfiguration,
    shunt: &ShuntConfiguration,
    overrides: Overrides,
    problems: &mut Problems,
) -> Logging {
    let from_file =
        || if file.logging.format == "json" { super::LogFormat::Json } else { Default::default() };
    let own = &shunt.logging;
    let is_level = own.level.as_ref().is_none_or(|level| EnvFilter::try_new(level).is_ok());
    problems.check(is_level, "logging.level", "is neither a level nor a list of module=level");
    Logging {
        format: overrides.log_format.or(own.format).unwrap_or_else(from_file),
        level: overrides.log_level.or_else(|| own.level.clone()).unwrap_or_else(|| "info".into()),
        datapath_level: overrides.datapath_log_level.unwrap_or(own.datapath_level),
    }
}

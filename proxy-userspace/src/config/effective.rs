//! From the fields of the file to the values the agent works with.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

use http::Uri;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde_norway::Value;
use tracing_subscriber::EnvFilter;

use super::{
    Config, ConntrackTimeouts, Logging, Overrides, Source, addresses,
    document::{Documents, written},
    duration::GoDuration,
    errors::Problems,
    gates,
    interfaces::InterfacePatterns,
    kube_proxy::{Conntrack, Ipvs, KubeProxyConfiguration, Nftables},
    shunt::{Algorithm, LoadBalancer, ShuntConfiguration},
};
use crate::{
    kernel::NfConntrack,
    model::{DetectLocal, NodePortAddresses, Taint},
};

/// Builds the configuration. Where a value is wrong, `problems` says so and a default
/// stands in, so that the rest is still looked at.
pub(super) fn config(documents: &Documents, source: &Source, problems: &mut Problems) -> Config {
    let Source { file, overrides } = source;
    let (kube_proxy, shunt) = (&documents.kube_proxy, &documents.shunt);
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
        master: overrides.master.clone(),
        api_servers: api_servers(&shunt.api_servers, problems),
        model: model(documents, overrides, &node_port_range, problems),
        node_port_range,
        timeouts: timeouts(kube_proxy),
        sync_period,
        min_sync_period,
        interfaces: InterfacePatterns::compile(&shunt.interfaces, problems),
        node_taint: node_taint(&shunt.node_taint, problems),
        attach: shunt.attach,
        xdp: shunt.xdp,
        health: listen(
            &kube_proxy.healthz_bind_address,
            overrides.healthz_bind_address.as_deref().map(|text| ("--healthz-bind-address", text)),
            (unspecified, HEALTH_PORT).into(),
            overrides.healthz_port.filter(|_| file.is_none()),
            problems,
        ),
        metrics: listen(
            &kube_proxy.metrics_bind_address,
            overrides.metrics_bind_address.as_deref().map(|text| ("--metrics-bind-address", text)),
            (loopback, METRICS_PORT).into(),
            overrides.metrics_port.filter(|_| file.is_none()),
            problems,
        ),
        bind_hard_fail: kube_proxy.bind_address_hard_fail,
        profiling: kube_proxy.enable_profiling,
        oom_score_adj: kube_proxy.oom_score_adj,
        host_conntrack: documents.has_kube_proxy.then(|| host_conntrack(&kube_proxy.conntrack)),
        maps: shunt.maps.capacities(problems),
        conntrack_memory: shunt.maps.conntrack_limit(problems),
        bpffs: overrides.bpffs.clone().unwrap_or_else(|| shunt.bpffs.clone()),
        cgroup: overrides.cgroup.clone().or_else(|| shunt.cgroup.clone()),
        logging: logging(kube_proxy, shunt, overrides, problems),
        notes: Vec::new(),
        hash: String::new(),
        source: Source::default(),
        kube_proxy: kube_proxy.clone(),
        shunt: ShuntConfiguration { load_balancer: load_balancer(documents), ..shunt.clone() },
    }
}

fn api_servers(urls: &[String], problems: &mut Problems) -> Vec<Uri> {
    let url = |(index, text): (usize, &String)| {
        let url = text.parse::<Uri>().ok().filter(|url| {
            url.host().is_some_and(|host| !host.is_empty())
                && matches!(url.scheme_str(), Some("https" | "http"))
        });
        if url.is_none() {
            problems.add(
                format!("apiServers[{index}]"),
                format_args!("{text:?} is not a URL such as https://10.0.0.2:6443"),
            );
        }
        url
    };
    urls.iter().enumerate().filter_map(url).collect()
}

fn node_taint(text: &str, problems: &mut Problems) -> Option<Taint> {
    let read = (!text.is_empty()).then(|| text.parse::<Taint>())?;
    if let Err(error) = &read {
        problems.add("nodeTaint", error.to_string());
    }
    read.ok()
}

fn model(
    documents: &Documents,
    overrides: &Overrides,
    node_ports: &RangeInclusive<u16>,
    problems: &mut Problems,
) -> crate::model::Config {
    let (file, shunt) = (&documents.kube_proxy, &documents.shunt);
    let snat_ports = port_range("snatPortRange", &shunt.snat_port_range, 1024..=29_999, problems);
    // A reply to a masqueraded connection that is forgotten would be taken for a client of the NodePort.
    let apart = snat_ports.end() < node_ports.start() || node_ports.end() < snat_ports.start();
    problems.check(apart, "snatPortRange", "overlaps nodePortRange: late replies would reach NodePorts");
    crate::model::Config {
        detect_local: detect_local(file, problems),
        masquerade_all: masquerade_all(file),
        node_port_addresses: node_port_addresses(file, problems),
        primary: addresses::ip(&file.bind_address).filter(|addr| !addr.is_unspecified()),
        external_ips: gates::allows_external_ips(&file.feature_gates),
        socket_lb: overrides.socket_lb.unwrap_or(shunt.socket_lb).into(),
        answer_echo: shunt.answer_echo,
        reserve_node_ports: shunt.reserve_node_ports,
        loose_tcp: shunt.loose_tcp,
        load_balancer: load_balancer(documents).into(),
        masquerade_addresses: masquerade_addresses(&shunt.masquerade_addresses, problems),
        snat_port_first: *snat_ports.start(),
        snat_port_last: *snat_ports.end(),
        timeouts: timeouts(file).into(),
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

fn node_port_addresses(file: &KubeProxyConfiguration, problems: &mut Problems) -> NodePortAddresses {
    let (list, iptables) = (&file.node_port_addresses, file.mode == "iptables");
    let everything = || [IpNet::from(Ipv4Net::default()), Ipv6Net::default().into()].into();
    let mut ranges: Vec<IpNet> = match (list.as_slice(), file.mode.as_str()) {
        ([], "iptables" | "ipvs") => everything(),
        ([], _) => return NodePortAddresses::Primary,
        ([word], _) if word == "primary" => return NodePortAddresses::Primary,
        (list, _) => list.iter().enumerate().filter_map(|(i, text)| node_ports(i, text, problems)).collect(),
    };
    let localhost = file.iptables.localhost_node_ports;
    if iptables && localhost && ranges.iter().any(|range| range.contains(&LOCALHOST)) {
        ranges.push(LOCALHOSTS);
    } else if !localhost && file.mode != "ipvs" && file.mode != "nftables" {
        // A family that has no range would be unrestricted. No host has the address that is left.
        let own = |range: &mut IpNet| LOCALHOSTS.contains(&*range);
        ranges.iter_mut().filter_map(|range| own(range).then_some(range)).for_each(|range| *range = NOBODY);
    }
    NodePortAddresses::Ranges(ranges.into())
}

fn masquerade_addresses(list: &[String], problems: &mut Problems) -> Box<[IpNet]> {
    let range = |(index, text): (usize, &String)| {
        let range = addresses::cidr(text);
        if range.is_none() {
            problems.add(format!("masqueradeAddresses[{index}]"), format_args!("{text:?} is not a CIDR"));
        }
        range
    };
    list.iter().enumerate().filter_map(range).collect()
}

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOCALHOSTS: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8));
const NOBODY: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 32));

fn node_ports(index: usize, text: &str, problems: &mut Problems) -> Option<IpNet> {
    let range = addresses::cidr(text);
    if range.is_none() {
        let reason = format_args!("{text:?} is not a CIDR, and not the single word primary");
        problems.add(format!("nodePortAddresses[{index}]"), reason);
    }
    range
}

/// Schedulers of IPVS by which the client decides are like Maglev; where ShuntConfiguration
/// says how backends are drawn, that counts.
fn load_balancer(documents: &Documents) -> LoadBalancer {
    let (file, mut balancer) = (&documents.kube_proxy, documents.shunt.load_balancer);
    let hashes = ["dh", "mh", "sh"].contains(&file.ipvs.scheduler.as_str());
    if hashes && ipvs_counts(file) && written(&documents.shunt_fields, "loadBalancer.algorithm").is_none() {
        balancer.algorithm = Algorithm::Maglev;
    }
    balancer
}

/// As kube-proxy sets them (`conntrack.SetSysctls`).
fn host_conntrack(conntrack: &Conntrack) -> NfConntrack {
    let count = |count: i32| u32::try_from(count).unwrap_or(0);
    let per_core = count(conntrack.max_per_core);
    NfConntrack {
        max: (per_core > 0).then(|| (per_core, count(conntrack.min))),
        tcp_established: conntrack.tcp_established_timeout.to_std(),
        tcp_close_wait: conntrack.tcp_close_wait_timeout.to_std(),
        tcp_be_liberal: conntrack.tcp_be_liberal,
        udp: conntrack.udp_timeout.to_std(),
        udp_stream: conntrack.udp_stream_timeout.to_std(),
    }
}

/// The section of the chosen mode counts; without a mode either may ask for it.
fn masquerade_all(file: &KubeProxyConfiguration) -> bool {
    match file.mode.as_str() {
        "iptables" | "ipvs" => file.iptables.masquerade_all,
        "nftables" => file.nftables.masquerade_all,
        _ => file.iptables.masquerade_all || file.nftables.masquerade_all,
    }
}

/// The periods of the mode's section; without a mode, of the first that sets one, so that both are of a section that was
/// checked. kube-proxy's least time between syncs of one second is for its cost; ours are small, so it counts
/// only where it was written down.
fn periods(file: &KubeProxyConfiguration, written: &Value) -> (Duration, Duration) {
    let order: &[&str] = match file.mode.as_str() {
        "iptables" => &["iptables"],
        "ipvs" => &["ipvs"],
        "nftables" => &["nftables"],
        _ => &["nftables", "iptables"],
    };
    let of = |section: &&str| {
        let period = |field| {
            let text = written.get(*section)?.get(field)?.as_str()?;
            text.parse::<GoDuration>().ok().filter(|period| !period.is_zero()).map(GoDuration::to_std)
        };
        [period("syncPeriod"), period("minSyncPeriod")]
    };
    let [sync, min] = order.iter().map(of).find(|set| set.iter().any(Option::is_some)).unwrap_or_default();
    (sync.unwrap_or_else(|| Nftables::default().sync_period.to_std()), min.unwrap_or_default())
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
    port: Option<u16>,
    problems: &mut Problems,
) -> Option<SocketAddr> {
    // kube-proxy's default has a port already, so that the flag for the port alone changes nothing there.
    let bare = port.unwrap_or(default.port());
    let parse = |text: &str| text.parse().ok().or_else(|| Some(SocketAddr::new(addresses::ip(text)?, bare)));
    match flag {
        _ if port == Some(0) => None,
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

/// The level that a verbosity of klog asks for. kube-proxy's developers write state at 2 and
/// 3, steps at 4 and 5, and every object above.
pub fn level_of_verbosity(verbosity: u32) -> &'static str {
    match verbosity {
        0..=3 => "info",
        4 | 5 => "debug",
        _ => "trace",
    }
}

fn logging(
    file: &KubeProxyConfiguration,
    shunt: &ShuntConfiguration,
    overrides: &Overrides,
    problems: &mut Problems,
) -> Logging {
    let from_file =
        || if file.logging.format == "json" { super::LogFormat::Json } else { Default::default() };
    let own = &shunt.logging;
    let is_level = own.level.as_ref().is_none_or(|level| EnvFilter::try_new(level).is_ok());
    problems.check(is_level, "logging.level", "is neither a level nor a list of module=level");
    Logging {
        format: overrides.log_format.or(own.format).unwrap_or_else(from_file),
        level: overrides
            .log_level
            .clone()
            .or_else(|| own.level.clone())
            .unwrap_or_else(|| level_of_verbosity(file.logging.verbosity).to_owned()),
        datapath_level: overrides.datapath_log_level.unwrap_or(own.datapath_level),
    }
}

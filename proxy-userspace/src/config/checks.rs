//! kube-proxy's own rules for the fields of its file that carry over unchanged. Fields
//! the agent turns into values of its own are checked where that happens (`effective`).
//!
//! A section counts only where it would be read: a file made for one mode may hold
//! anything in the sections of the others.

mod logging;

use std::net::SocketAddr;

use super::{
    addresses,
    duration::GoDuration,
    errors::Problems,
    gates,
    kube_proxy::{Conntrack, Ipvs, KubeProxyConfiguration, Nftables},
};

/// The release whose metrics `showHiddenMetricsForVersion` may bring back.
const PREVIOUS_MINOR: &str = "1.35";

const NOT_NEGATIVE: &str = "must not be negative";

/// Notes every field of `file` that kube-proxy would refuse.
pub(super) fn kube_proxy(file: &KubeProxyConfiguration, problems: &mut Problems) {
    gates::check(&file.feature_gates, problems);
    problems.check(file.client_connection.burst >= 0, "clientConnection.burst", NOT_NEGATIVE);
    logging::check(file, problems);
    listen_addresses(file, problems);
    problems.check(
        ["", "iptables", "ipvs", "nftables"].contains(&file.mode.as_str()),
        "mode",
        "must be iptables, ipvs, nftables or empty",
    );
    sections(file, problems);
    problems.check((-1000..=1000).contains(&file.oom_score_adj), "oomScoreAdj", "must be -1000 to 1000");
    conntrack(&file.conntrack, problems);
    problems.check(!file.config_sync_period.is_negative(), "configSyncPeriod", "must be more than 0");
    problems.check(
        ["", PREVIOUS_MINOR].contains(&file.show_hidden_metrics_for_version.as_str()),
        "showHiddenMetricsForVersion",
        "must be the previous minor release",
    );
}

fn listen_addresses(file: &KubeProxyConfiguration, problems: &mut Problems) {
    let bind = &file.bind_address;
    let is_address = bind.is_empty() || addresses::ip(bind).is_some();
    problems.check(is_address, "bindAddress", "must be an IP address");
    for (path, text) in [
        ("healthzBindAddress", &file.healthz_bind_address),
        ("metricsBindAddress", &file.metrics_bind_address),
    ] {
        problems.check(is_listen_address(text), path, "must be an IP address with a port of 1 to 65535");
    }
}

/// Empty stands for the default, and so does a missing port.
fn is_listen_address(text: &str) -> bool {
    let socket = text.parse::<SocketAddr>();
    text.is_empty() || addresses::ip(text).is_some() || socket.is_ok_and(|s| s.port() != 0)
}

fn sections(file: &KubeProxyConfiguration, problems: &mut Problems) {
    let (iptables, nftables, ipvs) = (&file.iptables, &file.nftables, &file.ipvs);
    let mode = file.mode.as_str();
    // kube-proxy looks at this one in every mode.
    masquerade_bit("iptables", iptables.masquerade_bit, problems);
    if !matches!(mode, "ipvs" | "nftables") {
        periods("iptables", iptables.sync_period, iptables.min_sync_period, problems);
    }
    if !matches!(mode, "ipvs" | "iptables") {
        masquerade_bit("nftables", nftables.masquerade_bit, problems);
        periods("nftables", nftables.sync_period, nftables.min_sync_period, problems);
    }
    if mode == "ipvs" {
        periods("ipvs", ipvs.sync_period, ipvs.min_sync_period, problems);
        ipvs_only(ipvs, problems);
    }
}

fn masquerade_bit(section: &str, bit: i32, problems: &mut Problems) {
    problems.check((0..=31).contains(&bit), &format!("{section}.masqueradeBit"), "must be 0 to 31");
}

/// A sync period of zero stands for the default.
fn periods(section: &str, period: GoDuration, min: GoDuration, problems: &mut Problems) {
    let default = Nftables::default().sync_period;
    let effective = if period.is_zero() { default } else { period };
    problems.check(!period.is_negative(), &format!("{section}.syncPeriod"), "must be more than 0");
    problems.check(!min.is_negative(), &format!("{section}.minSyncPeriod"), NOT_NEGATIVE);
    problems.check(
        min <= effective || period.is_negative(),
        &format!("{section}.minSyncPeriod"),
        "must not be longer than syncPeriod",
    );
}

fn ipvs_only(ipvs: &Ipvs, problems: &mut Problems) {
    for (path, timeout) in [
        ("ipvs.tcpTimeout", ipvs.tcp_timeout),
        ("ipvs.tcpFinTimeout", ipvs.tcp_fin_timeout),
        ("ipvs.udpTimeout", ipvs.udp_timeout),
    ] {
        problems.check(!timeout.is_negative(), path, NOT_NEGATIVE);
    }
    for (i, cidr) in ipvs.exclude_cidrs.iter().enumerate() {
        problems.check(addresses::cidr(cidr).is_some(), &format!("ipvs.excludeCIDRs[{i}]"), "must be a CIDR");
    }
}

fn conntrack(conntrack: &Conntrack, problems: &mut Problems) {
    problems.check(conntrack.max_per_core >= 0, "conntrack.maxPerCore", NOT_NEGATIVE);
    problems.check(conntrack.min >= 0, "conntrack.min", NOT_NEGATIVE);
    for (path, timeout) in [
        ("conntrack.tcpEstablishedTimeout", conntrack.tcp_established_timeout),
        ("conntrack.tcpCloseWaitTimeout", conntrack.tcp_close_wait_timeout),
        ("conntrack.udpTimeout", conntrack.udp_timeout),
        ("conntrack.udpStreamTimeout", conntrack.udp_stream_timeout),
    ] {
        problems.check(!timeout.is_negative(), path, NOT_NEGATIVE);
    }
}

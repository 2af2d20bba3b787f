//! `KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`) as files spell it: every
//! field, with kube-proxy's defaults. What the values mean is decided in `effective`.

mod defaults;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::duration::GoDuration;

/// The file's document. Absent and `null` fields take their default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyConfiguration {
    /// Alpha and beta features by name.
    pub feature_gates: BTreeMap<String, bool>,
    /// How to reach the API server.
    pub client_connection: ClientConnection,
    /// Format and verbosity of the log.
    pub logging: Logging,
    /// Name of this node, when it is not the host's name.
    pub hostname_override: String,
    /// Preferred family, given as an address.
    pub bind_address: String,
    /// Where the health server listens.
    pub healthz_bind_address: String,
    /// Where metrics are served.
    pub metrics_bind_address: String,
    /// A port that cannot be bound is fatal.
    pub bind_address_hard_fail: bool,
    /// Serve profiles.
    pub enable_profiling: bool,
    /// Show the metrics that were hidden in this release.
    pub show_hidden_metrics_for_version: String,
    /// iptables, ipvs, nftables or empty.
    pub mode: String,
    /// Used with mode iptables or none.
    pub iptables: Iptables,
    /// Used with mode ipvs.
    pub ipvs: Ipvs,
    /// Used with mode nftables or none.
    pub nftables: Nftables,
    /// Windows only.
    pub winkernel: Winkernel,
    /// ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.
    pub detect_local_mode: String,
    /// Names for the interface modes.
    #[serde(rename = "detectLocal")]
    pub detect_local: DetectLocalNames,
    /// Pod addresses of the cluster, at most one prefix per family.
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    /// Prefixes of node addresses that serve NodePorts, or the word `primary`.
    pub node_port_addresses: Vec<String>,
    /// Written to /proc/self/oom_score_adj.
    pub oom_score_adj: i32,
    /// Connection tracking.
    pub conntrack: Conntrack,
    /// How often everything is read anew from the API server.
    pub config_sync_period: GoDuration,
    /// Unused.
    pub port_range: String,
    /// Windows only.
    pub windows_run_as_service: bool,
}

/// `clientConnection`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientConnection {
    /// Path of the kubeconfig; empty means the pod's service account.
    pub kubeconfig: String,
    /// Accept header.
    pub accept_content_types: String,
    /// Content type of requests.
    pub content_type: String,
    /// Requests per second.
    pub qps: f32,
    /// Requests at once.
    pub burst: i32,
}

/// `logging`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Logging {
    /// text or json.
    pub format: String,
    /// Nanoseconds or a duration.
    pub flush_frequency: serde_norway::Value,
    /// `-v`.
    pub verbosity: u32,
    /// Verbosity per file.
    pub vmodule: Vec<VmoduleItem>,
    /// Buffering.
    pub options: LoggingOptions,
}

/// `logging.vmodule[]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VmoduleItem {
    /// Name of a file of the program's source, or a pattern of it.
    pub file_pattern: String,
    /// Its verbosity.
    pub verbosity: u32,
}

/// `logging.options`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoggingOptions {
    /// With format text.
    pub text: OutputRouting,
    /// With format json.
    pub json: OutputRouting,
}

/// `logging.options.text` and `logging.options.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OutputRouting {
    /// Errors go to standard error, the rest to standard output.
    pub split_stream: bool,
    /// Bytes, as a number or a quantity.
    pub info_buffer_size: serde_norway::Value,
}

/// `iptables`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Iptables {
    /// Bit of the packet mark.
    pub masquerade_bit: i32,
    /// Masquerade all traffic to ClusterIPs.
    pub masquerade_all: bool,
    /// NodePorts on loopback.
    pub localhost_node_ports: bool,
    /// Time between full syncs.
    pub sync_period: GoDuration,
    /// Least time between syncs.
    pub min_sync_period: GoDuration,
}

/// `ipvs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ipvs {
    /// Time between full syncs.
    pub sync_period: GoDuration,
    /// Least time between syncs.
    pub min_sync_period: GoDuration,
    /// Name of the scheduler.
    pub scheduler: String,
    /// Virtual servers to leave alone.
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Vec<String>,
    /// arp_ignore and arp_announce.
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    /// Idle TCP connections.
    pub tcp_timeout: GoDuration,
    /// TCP connections after a FIN.
    pub tcp_fin_timeout: GoDuration,
    /// Idle UDP flows.
    pub udp_timeout: GoDuration,
}

/// `nftables`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Nftables {
    /// Bit of the packet mark.
    pub masquerade_bit: i32,
    /// Masquerade all traffic to ClusterIPs.
    pub masquerade_all: bool,
    /// Time between full syncs.
    pub sync_period: GoDuration,
    /// Least time between syncs.
    pub min_sync_period: GoDuration,
}

/// `winkernel`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "Windows only; read so that a file made for both systems is accepted")]
pub struct Winkernel {
    pub network_name: String,
    pub source_vip: String,
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    pub root_hns_endpoint_name: String,
    pub forward_health_check_vip: bool,
}

/// `detectLocal`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DetectLocalNames {
    /// Traffic that comes in here comes from pods.
    pub bridge_interface: String,
    /// Traffic that comes in on interfaces named so comes from pods.
    pub interface_name_prefix: String,
}

/// `conntrack`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conntrack {
    /// Size of the kernel's table per CPU.
    pub max_per_core: i32,
    /// Least size of the kernel's table.
    pub min: i32,
    /// Idle established TCP connections.
    pub tcp_established_timeout: GoDuration,
    /// TCP connections in CLOSE_WAIT.
    pub tcp_close_wait_timeout: GoDuration,
    /// Tolerate packets out of window.
    pub tcp_be_liberal: bool,
    /// UDP flows without a reply; zero leaves the default.
    pub udp_timeout: GoDuration,
    /// UDP flows with replies; zero leaves the default.
    pub udp_stream_timeout: GoDuration,
}

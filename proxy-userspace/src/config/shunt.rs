//! `ShuntConfiguration` (`shunt.dev/v1alpha1`): what kube-proxy has no field for.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::maps::Maps;

/// The file's document. Absent and `null` fields take their default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ShuntConfiguration {
    /// URLs of further API servers of the same cluster, asked in turn when the first fails.
    pub api_servers: Vec<String>,
    /// Whose sockets are translated at connect time.
    #[serde(rename = "socketLB")]
    pub socket_lb: SocketLb,
    /// Cluster IPs answer ICMP echo.
    pub answer_echo: bool,
    /// Processes of the host cannot bind NodePorts.
    pub reserve_node_ports: bool,
    /// Any TCP or SCTP packet to a frontend opens a connection, not only the first of one.
    #[serde(rename = "looseTCP")]
    pub loose_tcp: bool,
    /// Which interfaces are what, where discovery must be overruled.
    pub interfaces: Interfaces,
    /// How programs are attached to interfaces.
    pub attach: Attach,
    /// How services are reached from outside, where they do not say so themselves.
    pub load_balancer: LoadBalancer,
    /// Whether drivers translate packets before the stack sees them.
    pub xdp: Xdp,
    /// CIDRs of addresses of the node behind which connections are masqueraded.
    pub masquerade_addresses: Vec<String>,
    /// `first-last`, the source ports of masqueraded connections.
    pub snat_port_range: String,
    /// `first-last`, the ports from which the API server gives NodePorts
    /// (`--service-node-port-range`).
    pub node_port_range: String,
    /// `KEY:EFFECT` of a taint that nodes register with (kubelet's `--register-with-taints`) and that
    /// the agent takes off its node when services work there for the first time; empty for none.
    pub node_taint: String,
    /// Sizes of the eBPF maps.
    pub maps: Maps,
    /// Folder of pins in a mounted bpf file system.
    pub bpffs: PathBuf,
    /// Root of the cgroup v2 hierarchy; found in the mount table when absent.
    pub cgroup: Option<PathBuf>,
    /// The log.
    pub logging: Logging,
}

impl Default for ShuntConfiguration {
    fn default() -> Self {
        Self {
            api_servers: Vec::new(),
            socket_lb: SocketLb::default(),
            answer_echo: true,
            reserve_node_ports: true,
            loose_tcp: false,
            interfaces: Interfaces::default(),
            attach: Attach::default(),
            load_balancer: LoadBalancer::default(),
            xdp: Xdp::default(),
            masquerade_addresses: Vec::new(),
            snat_port_range: "1024-29999".into(),
            node_port_range: "30000-32767".into(),
            node_taint: String::new(),
            maps: Maps::default(),
            bpffs: crate::kernel::DEFAULT_BPFFS.into(),
            cgroup: None,
            logging: Logging::default(),
        }
    }
}

/// Whose sockets are translated at connect time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SocketLb {
    /// Every process of the node.
    #[default]
    All,
    /// Processes in the host's network namespace.
    Host,
    /// Nobody's: every packet is translated on its way.
    Off,
}

impl From<SocketLb> for crate::model::SocketLb {
    fn from(configured: SocketLb) -> Self {
        match configured {
            SocketLb::All => Self::All,
            SocketLb::Host => Self::Host,
            SocketLb::Off => Self::Off,
        }
    }
}

impl From<crate::model::SocketLb> for SocketLb {
    fn from(in_force: crate::model::SocketLb) -> Self {
        use crate::model::SocketLb as Whose;
        match in_force {
            Whose::All => Self::All,
            Whose::Host => Self::Host,
            Whose::Off => Self::Off,
        }
    }
}

/// How services are reached from outside, where they do not say so themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoadBalancer {
    /// The way of packets to an endpoint on another node.
    pub mode: LoadBalancerMode,
    /// How the endpoint of a connection is drawn.
    pub algorithm: Algorithm,
}

/// The way of packets from outside to an endpoint on another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadBalancerMode {
    /// Masqueraded; the reply comes back by this node.
    #[default]
    Snat,
    /// Direct server return: the endpoint sees the client, and its node answers.
    Dsr,
    /// TCP by direct server return, everything else masqueraded.
    Hybrid,
}

/// How the endpoint of a connection is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// By chance.
    #[default]
    Random,
    /// By the client's address and port, equally on every node.
    Maglev,
}

impl From<LoadBalancer> for crate::model::LoadBalancer {
    fn from(configured: LoadBalancer) -> Self {
        use crate::model::{Algorithm as Draw, Mode};
        Self {
            mode: match configured.mode {
                LoadBalancerMode::Snat => Mode::Snat,
                LoadBalancerMode::Dsr => Mode::Dsr,
                LoadBalancerMode::Hybrid => Mode::Hybrid,
            },
            algorithm: match configured.algorithm {
                Algorithm::Random => Draw::Random,
                Algorithm::Maglev => Draw::Maglev,
            },
        }
    }
}

/// How programs are attached to interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attach {
    /// TCX links where the kernel has them (6.6), else clsact.
    #[default]
    Auto,
    /// TCX links.
    Tcx,
    /// Filters of a clsact qdisc.
    Clsact,
}

/// Whether drivers translate packets before the stack sees them. What they forward passes by
/// the host's firewall and by packet captures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Xdp {
    /// They do not.
    #[default]
    Off,
    /// Where the driver of a real device can.
    Auto,
    /// Where the driver can, on virtual cables too; a warning where it cannot.
    Native,
    /// By the stack where the driver cannot.
    Generic,
}

/// Shell patterns of interface names. `ignore` wins, then the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interfaces {
    /// No program is attached.
    pub ignore: Vec<String>,
    /// Host side of a pod's link.
    pub pod: Vec<String>,
    /// Uplinks.
    pub node: Vec<String>,
    /// Overlays.
    pub tunnel: Vec<String>,
}

/// The log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Logging {
    /// For people or for programs.
    pub format: Option<LogFormat>,
    /// `error`, `warn`, `info`, `debug`, `trace`, or such levels per module.
    pub level: Option<String>,
    /// What the eBPF programs log about packets.
    pub datapath_level: DatapathLevel,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// What the eBPF programs log about packets. Off costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum DatapathLevel {
    #[default]
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl DatapathLevel {
    /// The number that the eBPF object compares with; 0 is off.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The name in log filters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

//! What the operator asked for: kube-proxy's file and ours, overlaid by flags, checked as
//! a whole and turned into values the agent can use without parsing anything again.

mod addresses;
mod checks;
mod current;
mod document;
pub mod duration;
mod effective;
mod errors;
pub mod interfaces;
pub mod kube_proxy;
mod shown;
pub mod shunt;
mod unhonoured;

use std::{
    net::SocketAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

pub use current::Current;
pub use errors::{ConfigError, Problem, Problems};
pub use interfaces::InterfacePatterns;
pub use shunt::{Attach, DatapathLevel, LogFormat, SocketLb, Xdp};

/// The configuration the agent runs with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this node; the host's name when absent.
    pub node_name: Option<String>,
    /// Path of the kubeconfig; the pod's service account when absent.
    pub kubeconfig: Option<PathBuf>,
    /// What decides the rows.
    pub model: crate::model::Config,
    /// The ports that the API server gives to NodePorts.
    pub node_port_range: RangeInclusive<u16>,
    /// When idle connections are forgotten.
    pub timeouts: ConntrackTimeouts,
    /// Time between comparisons with the kernel.
    pub sync_period: Duration,
    /// Least time between two rounds of writes.
    pub min_sync_period: Duration,
    /// Which interfaces are what, where discovery is overruled.
    pub interfaces: InterfacePatterns,
    /// How programs are attached to interfaces.
    pub attach: Attach,
    /// Whether drivers translate packets before the stack sees them.
    pub xdp: Xdp,
    /// Where `/healthz` and `/livez` are served, if anywhere.
    pub health: Option<SocketAddr>,
    /// Where `/metrics` is served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// A port of the agent's own that is taken is fatal.
    pub bind_hard_fail: bool,
    /// Rows per map and family.
    pub maps: crate::kernel::Capacities,
    /// Folder of pins in a mounted bpf file system.
    pub bpffs: PathBuf,
    /// Root of the cgroup v2 hierarchy; found in the mount table when absent.
    pub cgroup: Option<PathBuf>,
    /// The log.
    pub logging: Logging,
    /// Fields of kube-proxy's file that are set and have no effect.
    pub unhonoured: Vec<String>,
    /// kube-proxy's document as it was written, for [`Config::configz`].
    kube_proxy: kube_proxy::KubeProxyConfiguration,
    /// Our document as it was written.
    shunt: shunt::ShuntConfiguration,
}

/// When idle connections are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackTimeouts {
    /// Established TCP connections.
    pub tcp_established: Duration,
    /// TCP connections one side has closed.
    pub tcp_close_wait: Duration,
    /// TCP connections both sides have closed.
    pub tcp_closed: Duration,
    /// UDP flows that saw packets one way.
    pub udp: Duration,
    /// UDP flows that saw packets both ways.
    pub udp_stream: Duration,
}

impl Default for ConntrackTimeouts {
    /// kube-proxy's values, and Linux's where kube-proxy leaves them alone.
    fn default() -> Self {
        Self {
            tcp_established: Duration::from_secs(24 * 3600),
            tcp_close_wait: Duration::from_secs(3600),
            tcp_closed: Duration::from_secs(120),
            udp: Duration::from_secs(30),
            udp_stream: Duration::from_secs(120),
        }
    }
}

/// The log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// For people or for programs.
    pub format: LogFormat,
    /// A level, or levels per module.
    pub level: String,
    /// What the eBPF programs log about packets.
    pub datapath_level: DatapathLevel,
}

/// Values from the command line, which win over the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--hostname-override`
    pub hostname: Option<String>,
    /// `--kubeconfig`
    pub kubeconfig: Option<PathBuf>,
    /// `--bpffs`
    pub bpffs: Option<PathBuf>,
    /// `--cgroup`
    pub cgroup: Option<PathBuf>,
    /// `--socket-lb`
    pub socket_lb: Option<SocketLb>,
    /// `--healthz-bind-address`; empty turns the server off.
    pub healthz_bind_address: Option<String>,
    /// `--metrics-bind-address`; empty turns the server off.
    pub metrics_bind_address: Option<String>,
    /// `--log-format`
    pub log_format: Option<LogFormat>,
    /// `--log-level`
    pub log_level: Option<String>,
    /// `--datapath-log-level`
    pub datapath_log_level: Option<DatapathLevel>,
}

impl Config {
    /// Reads `file`, if there is one, and lays `overrides` over it.
    pub fn load(file: Option<&Path>, overrides: Overrides) -> Result<Self, ConfigError> {
        let text = match file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?,
            None => String::new(),
        };
        Self::parse(&text, overrides)
    }

    /// Like [`Config::load`], from the text of a file.
    pub fn parse(text: &str, overrides: Overrides) -> Result<Self, ConfigError> {
        let mut problems = Problems::default();
        let documents = document::read(text, &mut problems)?;
        checks::kube_proxy(&documents.kube_proxy, &mut problems);
        let config = effective::config(&documents, overrides, &mut problems);
        if problems.is_empty() { Ok(config) } else { Err(ConfigError::Invalid(problems)) }
    }
}

#[cfg(test)]
mod tests;

//! What the operator asked for: kube-proxy's file and ours, overlaid by flags, checked as
//! a whole and turned into values the agent can use without parsing anything again.

mod addresses;
mod changes;
mod checks;
mod current;
mod document;
pub mod duration;
mod effective;
mod errors;
pub mod fields;
mod gates;
pub mod interfaces;
pub mod kube_proxy;
mod maps;
mod notes;
mod overlay;
mod shown;
pub mod shunt;

use std::{
    net::SocketAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

pub use changes::Difference;
pub use current::Current;
pub use effective::level_of_verbosity;
pub use errors::{ConfigError, Problem, Problems};
pub use interfaces::InterfacePatterns;
pub use maps::{Maps, MemoryLimit, MemoryLimitError};
pub use notes::{Note, Reason};
pub use overlay::FlagValue;
pub use shunt::{Attach, DatapathLevel, LogFormat, SocketLb, Xdp};

/// The configuration the agent runs with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this node; the host's name when absent.
    pub node_name: Option<String>,
    /// Path of the kubeconfig; the pod's service account when absent.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server, where it is not the one of the kubeconfig.
    pub master: Option<String>,
    /// API servers that are asked in turn when that one fails.
    pub api_servers: Vec<http::Uri>,
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
    /// The taint that goes when services work on this node, if any.
    pub node_taint: Option<crate::model::Taint>,
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
    /// Profiles are served where metrics are.
    pub profiling: bool,
    /// How willingly the system kills the agent for its memory, -1000 (never) to 1000.
    pub oom_score_adj: i32,
    /// What is wanted of the host's own connection tracking; none if nobody asked.
    pub host_conntrack: Option<crate::kernel::NfConntrack>,
    /// Rows per map and family to begin with.
    pub maps: crate::kernel::Capacities,
    /// The most memory that translated connections may take.
    pub conntrack_memory: MemoryLimit,
    /// Folder of pins in a mounted bpf file system.
    pub bpffs: PathBuf,
    /// Root of the cgroup v2 hierarchy; found in the mount table when absent.
    pub cgroup: Option<PathBuf>,
    /// The log.
    pub logging: Logging,
    /// Fields of kube-proxy's that are set and mean something else here, or nothing.
    pub notes: Vec<Note>,
    /// SHA-256 of the file, in hexadecimal; tells which version of it a node has.
    pub hash: String,
    /// Where this came from, to read it again.
    source: Source,
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
            tcp_closed: Duration::from_secs(30),
            udp: Duration::from_secs(30),
            udp_stream: Duration::from_secs(120),
        }
    }
}

/// Where a configuration came from.
#[derive(Clone, Debug, Default)]
struct Source {
    file: Option<PathBuf>,
    overrides: Overrides,
}

/// With defaults for what kube-proxy does not know.
impl From<ConntrackTimeouts> for crate::model::Timeouts {
    fn from(configured: ConntrackTimeouts) -> Self {
        Self {
            tcp_established: configured.tcp_established,
            tcp_half_closed: configured.tcp_close_wait,
            tcp_closed: configured.tcp_closed,
            udp: configured.udp,
            udp_stream: configured.udp_stream,
            ..Self::default()
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
    /// `--master`
    pub master: Option<String>,
    /// `--healthz-port`, which counts without a file; 0 turns the server off.
    pub healthz_port: Option<u16>,
    /// `--metrics-port`, the same.
    pub metrics_port: Option<u16>,
    /// kube-proxy's flags, which count without a file.
    pub kube_proxy: Vec<FlagValue>,
}

impl Config {
    /// Reads `file`, if there is one, and lays `overrides` over it.
    pub fn load(file: Option<&Path>, overrides: Overrides) -> Result<Self, ConfigError> {
        let text = match file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?,
            None => String::new(),
        };
        Self::build(&text, Source { file: file.map(Path::to_owned), overrides })
    }

    /// Like [`Config::load`], from the text of a file.
    pub fn parse(text: &str, overrides: Overrides) -> Result<Self, ConfigError> {
        Self::build(text, Source { file: None, overrides })
    }

    /// The file this was read from.
    pub fn file(&self) -> Option<&Path> {
        self.source.file.as_deref()
    }

    /// The same with another text of the file.
    pub fn with_text(&self, text: &str) -> Result<Self, ConfigError> {
        Self::build(text, self.source.clone())
    }

    /// SHA-256 of a file's text, in hexadecimal, as `sha256sum` shows it.
    pub fn hash_of(text: &str) -> String {
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn build(text: &str, source: Source) -> Result<Self, ConfigError> {
        let mut problems = Problems::default();
        let flags = source.overrides.kube_proxy.iter();
        let (counting, ignored): (Vec<_>, Vec<_>) =
            flags.partition(|flag| source.file.is_none() || flag.counts_beside_a_file());
        let documents = document::read(text, &counting, &mut problems)?;
        checks::kube_proxy(&documents.kube_proxy, &mut problems);
        let mut config = effective::config(&documents, &source, &mut problems);
        if !problems.is_empty() {
            let flag = |path: &str| counting.iter().find(|flag| flag.paths.contains(&path));
            problems.rename(|path| flag(path).map(|flag| format!("--{}", flag.flag)));
            return Err(ConfigError::Invalid(problems));
        }
        config.notes = notes::notes(&documents, &ignored);
        config.hash = Self::hash_of(text);
        config.source = source;
        Ok(config)
    }
}

#[cfg(test)]
mod tests;

//! `shunt agent`: its flags, which win over the configuration file, and kube-proxy's, which do
//! not.

mod called;
mod flags;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::Args;

use super::{BPFFS_VARIABLE, CGROUP_VARIABLE};
use crate::{
    agent,
    config::{Config, DatapathLevel, LogFormat, Overrides, SocketLb},
    logging,
};

pub use self::{called::arguments, flags::KubeProxyFlags};

pub(super) const EXAMPLES: &str = "Examples:
  In a pod with a service account:
    shunt agent --hostname-override \"$NODE_NAME\" --config /etc/shunt/config.yaml
  Outside of one:
    shunt agent --kubeconfig /etc/kubernetes/kubelet.conf
  Without a cluster:
    kubectl get svc,endpointslices,nodes -A -o yaml > manifests/all.yaml
    shunt agent --manifests manifests --hostname-override node-1

  In the place of kube-proxy, with its arguments:
    kube-proxy --config=/var/lib/kube-proxy/config.conf --hostname-override=$(NODE_NAME)

What the agent sets up stays when it ends, and traffic goes on; `shunt cleanup` removes it.";

/// `shunt agent`
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Read Services, EndpointSlices, Nodes and ServiceCIDRs from the YAML and JSON files
    /// of a directory, and follow their changes.
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    pub manifests: Option<PathBuf>,
    /// Watch the API server this file names; without it, that of the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of this node in the cluster [default: the host name, lower-cased].
    #[arg(long, value_name = "NODE")]
    pub hostname_override: Option<String>,
    /// Directory for pinned maps and links, on a bpf file system [default: /sys/fs/bpf/shunt].
    #[arg(long, value_name = "DIR", env = BPFFS_VARIABLE)]
    pub bpffs: Option<PathBuf>,
    /// Cgroup whose processes socket LB serves [default: the root of the cgroup v2 hierarchy].
    #[arg(long, value_name = "DIR", env = CGROUP_VARIABLE)]
    pub cgroup: Option<PathBuf>,
    /// KubeProxyConfiguration and ShuntConfiguration documents. Flags win over them.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Whose connections are translated when they are opened, not packet by packet [default: all].
    #[arg(long, value_name = "WHOSE")]
    pub socket_lb: Option<SocketLb>,
    /// Where /healthz and /livez are served; empty turns them off [default: 0.0.0.0:10256].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub healthz_bind_address: Option<String>,
    /// Where /metrics is served; empty turns it off [default: 127.0.0.1:10249].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_bind_address: Option<String>,
    /// How log lines are written [default: text].
    #[arg(long)]
    pub log_format: Option<LogFormat>,
    /// error, warn, info, debug or trace, or such levels per module [default: info].
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// What the eBPF programs log about packets; off costs nothing [default: off].
    #[arg(long, value_name = "LEVEL")]
    pub datapath_log_level: Option<DatapathLevel>,
    /// Write the configuration that would be in force to a file, and end.
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// Remove what agents left on this node, as `shunt cleanup` does, and end.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = flags::boolean, overrides_with = "cleanup")]
    pub cleanup: Option<bool>,
    /// Set up what takes full privileges, and end: settings of the host's nf_conntrack and of
    /// loopback, the directory of pins.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = flags::boolean, overrides_with = "init_only")]
    pub init_only: Option<bool>,
    /// URL of the API server, in place of the kubeconfig's.
    #[arg(long, value_name = "URL", conflicts_with = "manifests")]
    pub master: Option<String>,
    /// Without --config, 0 turns /healthz off; use --healthz-bind-address.
    #[arg(long, value_name = "PORT", hide = true)]
    pub healthz_port: Option<u16>,
    /// Without --config, 0 turns /metrics off; use --metrics-bind-address.
    #[arg(long, value_name = "PORT", hide = true)]
    pub metrics_port: Option<u16>,
    /// kube-proxy's.
    #[command(flatten)]
    pub kube_proxy: KubeProxyFlags,
}

impl AgentArgs {
    /// The flags that win over the configuration file.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            hostname: self.hostname_override.clone(),
            kubeconfig: self.kubeconfig.clone(),
            bpffs: self.bpffs.clone(),
            cgroup: self.cgroup.clone(),
            socket_lb: self.socket_lb,
            healthz_bind_address: self.healthz_bind_address.clone(),
            metrics_bind_address: self.metrics_bind_address.clone(),
            log_format: self.log_format,
            log_level: self.log_level.clone(),
            datapath_log_level: self.datapath_log_level,
            master: self.master.clone(),
            healthz_port: self.healthz_port,
            metrics_port: self.metrics_port,
            kube_proxy: self.kube_proxy.given(),
        }
    }
}

/// Runs the agent until it is told to stop.
pub fn run(args: AgentArgs) -> Result<ExitCode> {
    let config = Config::load(args.config.as_deref(), args.overrides()).context("configuration")?;
    if let Some(file) = &args.write_config_to {
        return write(&config, file);
    }
    logging::init(&config.logging)?;
    if args.cleanup == Some(true) {
        return super::cleanup::run(&super::cleanup::CleanupArgs::all_of(config.bpffs));
    }
    if args.init_only == Some(true) {
        return agent::init(&config).map(|()| ExitCode::SUCCESS);
    }
    match super::runtime()?.block_on(agent::run(config, args.manifests)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            // In the log, and there only: it may be JSON that a program reads.
            tracing::error!(error = super::describe(&error), "the agent ends");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn write(config: &Config, file: &Path) -> Result<ExitCode> {
    std::fs::write(file, config.to_yaml()).with_context(|| format!("cannot write {}", file.display()))?;
    super::print(&format!("wrote the configuration to {}", file.display()))
}

//! `shunt agent`: its flags, which win over the configuration file.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::{
    agent,
    config::{Config, DatapathLevel, LogFormat, Overrides, SocketLb},
    logging,
};

pub(super) const EXAMPLES: &str = "Examples:
  In a pod with a service account:
    shunt agent --hostname-override \"$NODE_NAME\" --config /etc/shunt/config.yaml
  Outside of one:
    shunt agent --kubeconfig /etc/kubernetes/kubelet.conf
  Without a cluster:
    kubectl get svc,endpointslices,nodes -A -o yaml > manifests/all.yaml
    shunt agent --manifests manifests --hostname-override node-1

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
    #[arg(long, value_name = "DIR")]
    pub bpffs: Option<PathBuf>,
    /// Cgroup whose processes socket LB serves [default: the root of the cgroup v2 hierarchy].
    #[arg(long, value_name = "DIR")]
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
        }
    }
}

/// Runs the agent until it is told to stop.
pub fn run(args: AgentArgs) -> Result<ExitCode> {
    let config = Config::load(args.config.as_deref(), args.overrides()).context("configuration")?;
    logging::init(&config.logging)?;
    match super::runtime()?.block_on(agent::run(config, args.manifests)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            // In the log, and there only: it may be JSON that a program reads.
            tracing::error!(error = super::describe(&error), "the agent ends");
            Ok(ExitCode::FAILURE)
        }
    }
}

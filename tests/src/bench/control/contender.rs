//! Who is measured, and how it is started and ended.

use super::usage::Usage;
use crate::{
    kube_proxy::{self, KubeProxy, Mode},
    process::binary,
    topology::cluster::Node,
};
use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::{fmt, path::Path, time::Duration};

/// Who takes services to their endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// The real kube-proxy, in its iptables mode, by way of iptables-nft
    KubeProxyIptables,
    /// The same, by way of iptables-legacy
    KubeProxyIptablesLegacy,
    /// The real kube-proxy, in its nftables mode
    KubeProxyNftables,
    /// The agent of this project
    Shunt,
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::KubeProxyIptables => "kube-proxy iptables",
            Self::KubeProxyIptablesLegacy => "kube-proxy iptables (legacy)",
            Self::KubeProxyNftables => "kube-proxy nftables",
            Self::Shunt => "shunt",
        })
    }
}

impl Contender {
    /// The mode, of a kube-proxy.
    fn mode(self) -> Option<Mode> {
        match self {
            Self::KubeProxyIptables => Some(Mode::Iptables),
            Self::KubeProxyIptablesLegacy => Some(Mode::IptablesLegacy),
            Self::KubeProxyNftables => Some(Mode::Nftables),
            Self::Shunt => None,
        }
    }

    /// Why it cannot run here, if so.
    pub(super) fn obstacle(self) -> Option<String> {
        match self.mode() {
            Some(mode) => kube_proxy::obstacle(mode),
            None => binary("shunt").err().map(|error| error.to_string()),
        }
    }

    /// In which the API server writes its lists for it.
    pub(super) fn media_type(self) -> &'static str {
        match self.mode() {
            Some(_) => "application/vnd.kubernetes.protobuf;stream=watch",
            None => "application/json;stream=watch",
        }
    }

    /// Starts it on a node, which has the API server that `kubeconfig` names.
    pub(super) fn start(self, node: &mut Node, kubeconfig: &Path) -> Result<Running> {
        let Some(mode) = self.mode() else {
            // More would be work that no agent does unless it is asked to.
            node.agent.log_at("info,shunt::agent=debug");
            node.agent.start_with_api_server(&node.host.netns, kubeconfig)?;
            return Ok(Running { usage: Usage::of(node.agent.process_id()?)?, kube_proxy: None });
        };
        let kube_proxy = KubeProxy::start(&node.host.netns, &node.host.name, mode, kubeconfig)?;
        Ok(Running { usage: Usage::of(kube_proxy.id())?, kube_proxy: Some(kube_proxy) })
    }
}

/// One that runs.
#[derive(Debug)]
pub(super) struct Running {
    // Before the cgroup that it is in.
    kube_proxy: Option<KubeProxy>,
    /// What it uses.
    pub(super) usage: Usage,
}

impl Running {
    /// Ends it; what it has written stays.
    pub(super) fn stop(self, node: &mut Node) -> Result<()> {
        if self.kube_proxy.is_none() {
            node.agent.stop()?;
        }
        Ok(())
    }

    /// Waits until it says that everything is written, and how many rows it was; it may say neither.
    pub(super) fn in_sync(&self, node: &Node, limit: Duration) -> Option<u64> {
        if self.kube_proxy.is_some() {
            return None;
        }
        node.agent.line_within(limit, "in sync")?.field("writes").as_u64()
    }

    /// Whether it says when everything is written.
    pub(super) fn tells(&self) -> bool {
        self.kube_proxy.is_none()
    }

    /// The end of its log.
    pub(super) fn last_words(&self, node: &Node) -> String {
        self.kube_proxy.as_ref().map_or_else(|| node.agent.last_words(), KubeProxy::last_words)
    }
}

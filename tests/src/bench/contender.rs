//! Who is compared.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    kube_proxy::{KubeProxy, Mode},
    topology::cluster::{Cluster, Node},
};

/// A way to deliver traffic of Services, or none.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// No proxy: clients know the backends' addresses. The limit.
    Direct,
    /// kube-proxy in iptables mode, with `iptables-nft`.
    Iptables,
    /// The same, with `iptables-legacy`.
    IptablesLegacy,
    /// kube-proxy in nftables mode.
    Nftables,
    /// shunt, all sockets of the node and of its pods translated when they connect.
    ShuntAll,
    /// shunt, sockets of the host translated, pods by packets.
    ShuntHost,
    /// shunt, everything by packets.
    ShuntOff,
    /// shunt, what only passes the node forwarded in the drivers' hook.
    ShuntXdp,
    /// shunt, backends on other nodes answer clients themselves.
    ShuntDsr,
    /// Both of the last two.
    ShuntDsrXdp,
}

impl Contender {
    /// As options and reports name it.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The mode, if it is kube-proxy.
    pub fn kube_proxy(self) -> Option<Mode> {
        match self {
            Self::Iptables => Some(Mode::Iptables),
            Self::IptablesLegacy => Some(Mode::IptablesLegacy),
            Self::Nftables => Some(Mode::Nftables),
            _ => None,
        }
    }

    /// Whether it is shunt.
    pub fn is_shunt(self) -> bool {
        self != Self::Direct && self.kube_proxy().is_none()
    }

    /// Fields of `ShuntConfiguration`; map sizes are the defaults.
    pub fn settings(self) -> Value {
        let socket_lb = match self {
            Self::ShuntHost => "host",
            Self::ShuntOff => "off",
            _ => "all",
        };
        let xdp = if matches!(self, Self::ShuntXdp | Self::ShuntDsrXdp) { "native" } else { "off" };
        let way = if self.answers_directly() { "dsr" } else { "snat" };
        json!({"socketLB": socket_lb, "xdp": xdp, "loadBalancer": {"mode": way}})
    }

    /// Whether the backends' nodes take part.
    pub fn answers_directly(self) -> bool {
        matches!(self, Self::ShuntDsr | Self::ShuntDsrXdp)
    }

    /// Whether links have to be such that drivers can forward.
    pub fn uses_drivers(self) -> bool {
        matches!(self, Self::ShuntXdp | Self::ShuntDsrXdp)
    }

    /// Starts it on the nodes of a cluster that take part, which see the API server by this
    /// kubeconfig. Rules come later.
    pub fn start(self, cluster: &mut Cluster, kubeconfig: &Path) -> Result<Option<KubeProxy>> {
        let (first, rest) = cluster.nodes.split_at_mut(1);
        if let Some(mode) = self.kube_proxy() {
            let Node { host, .. } = &first[0];
            return KubeProxy::start(&host.netns, &host.name, mode, kubeconfig).map(Some);
        }
        let rest = if self.answers_directly() { rest } else { &mut [] };
        if self.is_shunt() {
            for node in first.iter_mut().chain(rest) {
                node.agent.start_with_api_server(&node.host.netns, kubeconfig)?;
            }
        }
        Ok(None)
    }
}

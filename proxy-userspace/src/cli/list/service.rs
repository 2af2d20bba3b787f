//! `shunt service list`: who answers on which address, and with which backends.

mod build;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use proxy_common::maps::frontends::Kind;
use serde::Serialize;

use self::build::refused;
pub use self::build::{frontends, rule_words, sort};
use super::{
    ListArgs, Listed, Stored,
    column::{Column, Shown, Value},
    filter::{Facets, Where},
};
use crate::{
    cli::{rows::Tables, usage::Counts},
    model::{Algorithm, Family, Mode},
};

/// `shunt service`
#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Show the addresses services answer on, their policies and their backends.
    ///
    /// A Service of kind `refused` has no room for what is wanted of it, for the reason that stands in the
    /// place of its backends; what it had before is still served, and stands in rows of its own.
    ///
    /// A backend marked * runs on this node. CONNECTIONS are open ones whose packets are rewritten;
    /// connections that socket LB translated when they were opened need no tracking and are not among
    /// them. Behind each backend of the wide table stand its open connections, and all that were ever
    /// opened, those of sockets included.
    #[command(after_help = EXAMPLES)]
    List(ListArgs<FrontendView>),
}

const EXAMPLES: &str = "Examples:
  shunt service list
  shunt service list --namespace shop -o wide
  shunt service list --address 10.96.0.10 --port 53
  shunt service list --kind NodePort --sort connections --reverse
  shunt service list -o json | jq '.[] | select(.backends == [])'";

/// Which frontends.
#[derive(Debug, Default, Args)]
pub struct ServiceFilter {
    /// By what all lists have.
    #[command(flatten)]
    pub at: Where,
    /// Only addresses of this kind.
    #[arg(long, ignore_case = true, help_heading = "Filters")]
    pub kind: Option<FrontendKind>,
    /// Only what has a backend on this node.
    #[arg(long, help_heading = "Filters")]
    pub local: bool,
    /// Only what has no backend.
    #[arg(long, conflicts_with = "local", help_heading = "Filters")]
    pub without_backends: bool,
}

/// A face of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
#[allow(missing_docs, reason = "the names are those of Kubernetes")]
pub enum FrontendKind {
    #[value(name = "ClusterIP")]
    ClusterIp,
    NodePort,
    #[value(name = "ExternalIP")]
    ExternalIp,
    LoadBalancer,
}

impl FrontendKind {
    /// Its name in lists.
    pub fn name(self) -> &'static str {
        self.kind().name()
    }

    fn kind(self) -> Kind {
        match self {
            FrontendKind::ClusterIp => Kind::CLUSTER_IP,
            FrontendKind::NodePort => Kind::NODE_PORT,
            FrontendKind::ExternalIp => Kind::EXTERNAL_IP,
            FrontendKind::LoadBalancer => Kind::LOAD_BALANCER,
        }
    }
}

/// One address a service answers on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendView {
    /// Namespace, name and port name.
    pub service: String,
    /// Key in the map `services`.
    pub service_id: u32,
    /// Which face of the service it is.
    pub kind: &'static str,
    /// The address; `*` for NodePorts.
    pub address: String,
    /// For NodePorts, the addresses that take them.
    pub node_addresses: Vec<String>,
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
    /// The port; 0 where all ports are meant.
    pub port: u16,
    /// TCP, UDP, SCTP, or any.
    pub protocol: &'static str,
    /// The traffic policy that shows in the rules: the internal one for cluster IPs, else the external one.
    pub policy: &'static str,
    /// The way of connections from outside to backends on other nodes: `snat` or `dsr`.
    pub mode: &'static str,
    /// How a backend is drawn: `random` or `maglev`.
    pub algorithm: &'static str,
    /// How each class of clients is served.
    pub rules: Rules,
    /// Seconds a client sticks to its backend; 0 is off.
    pub affinity_seconds: u32,
    /// What went by it; none where it is not about what is.
    #[serde(flatten)]
    pub counts: Option<Counts>,
    /// Who answers.
    pub backends: Vec<BackendView>,
    /// Of a Service for which there is no room, the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// How each class of clients is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rules {
    /// Pods of the cluster.
    pub pod: Vec<&'static str>,
    /// Processes in the host's network.
    pub node: Vec<&'static str>,
    /// Everybody else.
    pub external: Vec<&'static str>,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendView {
    /// Address and port; a number in `?()` if the backend is missing.
    pub address: String,
    /// Runs on this node.
    pub local: bool,
    /// What went there from this frontend.
    #[serde(flatten)]
    pub counts: Option<Counts>,
}

/// Backends in a cell of the short table; a service may have thousands.
const BACKENDS_SHOWN: usize = 4;

impl Listed for FrontendView {
    type Filter = ServiceFilter;

    const COLUMNS: &'static [Column<Self>] = &[
        Column { name: "SERVICE", shown: Shown::Always, value: |v| v.service.as_str().into() },
        Column { name: "KIND", shown: Shown::Always, value: |v| v.kind.into() },
        Column { name: "FRONTEND", shown: Shown::Narrow, value: |v| v.with_port(&v.address).into() },
        Column { name: "FRONTEND", shown: Shown::Wide, value: every_address },
        Column { name: "PROTO", shown: Shown::Always, value: |v| v.protocol.into() },
        Column { name: "POLICY", shown: Shown::Always, value: policy_and_balancer },
        Column { name: "BACKENDS", shown: Shown::Narrow, value: some_backends },
        Column { name: "BACKENDS", shown: Shown::Wide, value: every_backend },
        Column {
            name: "CONNECTIONS",
            shown: Shown::Always,
            value: |v| v.counts.map_or(Value::None, |c| c.connections.into()),
        },
        Column { name: "OPENED", shown: Shown::Wide, value: |v| opened(v.counts) },
        Column { name: "AFFINITY", shown: Shown::Wide, value: affinity },
        Column { name: "POD", shown: Shown::Wide, value: |v| Value::words(v.rules.pod.iter().copied()) },
        Column { name: "NODE", shown: Shown::Wide, value: |v| Value::words(v.rules.node.iter().copied()) },
        Column {
            name: "EXTERNAL",
            shown: Shown::Wide,
            value: |v| Value::words(v.rules.external.iter().copied()),
        },
        Column { name: "ID", shown: Shown::Wide, value: |v| u64::from(v.service_id).into() },
    ];

    fn is_wanted(&self, filter: &ServiceFilter) -> bool {
        filter.at.admits(&self.facets())
            && filter.kind.is_none_or(|kind| self.kind == kind.name())
            && (!filter.local || self.backends.iter().any(|backend| backend.local))
            && (!filter.without_backends || (self.backends.is_empty() && self.port != 0))
    }

    /// Rows for a whole address only say that its other ports are refused.
    fn is_detail(&self) -> bool {
        self.port == 0 && self.refused.is_none()
    }
}

impl Stored for FrontendView {
    fn read(bpffs: &Path, filter: &ServiceFilter) -> Result<Vec<Self>> {
        let tables = Tables::read(bpffs, filter.at.numeric)?;
        let mut views = frontends(&tables.v4, &tables.names);
        views.extend(frontends(&tables.v6, &tables.names));
        views.extend(tables.refused.into_iter().map(|(service, reason)| refused(service, reason)));
        sort(&mut views);
        Ok(views)
    }
}

impl FrontendView {
    /// What filters look at.
    pub(in crate::cli) fn facets(&self) -> Facets<'_> {
        let addresses = std::iter::once(&self.address).chain(&self.node_addresses);
        let mut facets = Facets {
            services: vec![&self.service],
            addresses: addresses.filter_map(|address| address.parse::<IpAddr>().ok()).collect(),
            ports: vec![self.port],
            protocol: Some(self.protocol).filter(|_| self.port != 0),
            family: self.family,
        };
        for backend in self.backends.iter().filter_map(|backend| backend.address.parse().ok()) {
            let backend: SocketAddr = backend;
            facets.addresses.push(backend.ip());
            facets.ports.push(backend.port());
        }
        facets
    }

    /// The row's name in the map of its family.
    pub(in crate::cli) fn row_name(&self) -> String {
        let any = || {
            if self.family == Family::V6.name() {
                Ipv6Addr::UNSPECIFIED.into()
            } else {
                Ipv4Addr::UNSPECIFIED.into()
            }
        };
        row_name(self.address.parse().unwrap_or_else(|_| any()), self.port, self.protocol)
    }

    pub(in crate::cli) fn with_port(&self, address: &str) -> String {
        match self.port {
            0 => address.to_owned(),
            port if address.contains(':') => format!("[{address}]:{port}"),
            port => format!("{address}:{port}"),
        }
    }
}

/// A row of `frontends`, as people would name it. NodePorts stand under no address.
pub(in crate::cli) fn row_name(addr: IpAddr, port: u16, protocol: &str) -> String {
    match port {
        0 => format!("{addr}, other ports"),
        port => format!("{}/{protocol}", SocketAddr::new(addr, port)),
    }
}

/// For NodePorts, the addresses that take them.
pub(in crate::cli) fn every_address(view: &FrontendView) -> Value {
    match &view.node_addresses[..] {
        [] => view.with_port(&view.address).into(),
        addresses => Value::Lines(addresses.iter().map(|address| view.with_port(address)).collect()),
    }
}

/// The policy, and beside it what is not the default of the load balancer.
pub(in crate::cli) fn policy_and_balancer(view: &FrontendView) -> Value {
    let words = [(view.mode, Mode::default().name()), (view.algorithm, Algorithm::default().name())];
    let differing = words.into_iter().filter(|(word, default)| word != default).map(|(word, _)| word);
    Value::text(std::iter::once(view.policy).chain(differing).collect::<Vec<_>>().join(" "))
}

pub(in crate::cli) fn some_backends(view: &FrontendView) -> Value {
    let mut lines: Vec<_> = view.backends.iter().take(BACKENDS_SHOWN).map(BackendView::marked).collect();
    if view.backends.len() > BACKENDS_SHOWN {
        lines.push(format!("… {} more", view.backends.len() - BACKENDS_SHOWN));
    }
    lines_or_none(view, lines)
}

pub(in crate::cli) fn every_backend(view: &FrontendView) -> Value {
    let line = |backend: &BackendView| match backend.counts {
        Some(counts) => format!("{} ({}/{})", backend.marked(), counts.connections, counts.opened),
        None => backend.marked(),
    };
    lines_or_none(view, view.backends.iter().map(line).collect())
}

fn opened(counts: Option<Counts>) -> Value {
    counts.map_or(Value::None, |counts| counts.opened.into())
}

fn lines_or_none(view: &FrontendView, lines: Vec<String>) -> Value {
    match view.port {
        0 => view.refused.as_deref().map_or(Value::None, Value::from),
        _ if lines.is_empty() => "<none>".into(),
        _ => Value::Lines(lines),
    }
}

pub(in crate::cli) fn affinity(view: &FrontendView) -> Value {
    match view.affinity_seconds {
        0 => Value::None,
        seconds => Value::Seconds(seconds.into()),
    }
}

impl BackendView {
    /// The address, with a mark if it is on this node.
    fn marked(&self) -> String {
        format!("{}{}", self.address, if self.local { " *" } else { "" })
    }
}

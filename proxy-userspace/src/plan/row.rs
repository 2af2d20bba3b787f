//! The rows themselves, before ids and offsets exist.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use proxy_common::maps::{
    frontends::{ClientClass, ClientRule, Kind},
    settings::Settings,
};

use super::maglev::Use;
use crate::model::{Family, Protocol, ServicePortName};

/// All rows of one service port in one family.
///
/// Backends and frontends are sorted and free of duplicates, so that equal input gives
/// equal plans whatever the order it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// The service port.
    pub name: ServicePortName,
    /// The family of all addresses in it.
    pub family: Family,
    /// The protocol of its backends and of its frontends with a port.
    pub protocol: Protocol,
    /// Seconds a client sticks to its backend; 0 is off.
    pub affinity_secs: u32,
    /// Usable backends of the whole cluster; empty when no policy asks for them.
    pub cluster: Scope,
    /// Usable backends on this node; empty when no policy asks for them.
    pub local: Scope,
    /// Backends on this node to which other nodes may send connections by direct server
    /// return: every one that answers. Empty when no frontend has a rule for that.
    pub returning: Box<[BackendRow]>,
    /// Backends that still answer but take no new connections here. Flows that have no end
    /// of their own, such as those of UDP, go on to them.
    pub lingering: Box<[BackendRow]>,
    /// Sources that may use the load-balancer addresses; empty when all may.
    pub source_ranges: Box<[IpNet]>,
    /// The addresses it answers on.
    pub frontends: Box<[FrontendRow]>,
}

impl PortPlan {
    /// Whether a policy Local turns clients away from endpoints that exist elsewhere.
    pub fn lacks_local(&self) -> LacksLocal {
        let turned_away = |frontend: &&FrontendRow| {
            frontend.rules.any(|rule| rule.has(ClientRule::LOCAL) && rule.has(ClientRule::DROP))
        };
        let mut kinds = self.frontends.iter().filter(turned_away).map(|frontend| frontend.kind);
        let none = self.local.backends.is_empty();
        LacksLocal {
            internal: none && kinds.clone().any(|kind| kind == Kind::CLUSTER_IP),
            external: none && kinds.any(|kind| kind != Kind::CLUSTER_IP),
        }
    }
}

/// Whose clients find no endpoint on this node, although the policy keeps them to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LacksLocal {
    /// Clients of the cluster IP.
    pub internal: bool,
    /// Clients of the faces to the outside.
    pub external: bool,
}

/// Backends to choose from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The backends.
    pub backends: Box<[BackendRow]>,
    /// How slots lead to them.
    pub spread: Spread,
}

/// How slots lead to backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Spread {
    /// One slot for each, in their order.
    #[default]
    Even,
    /// A table in which each has slots by its weight.
    Table(Use),
}

/// One backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendRow {
    /// Address and port of the endpoint.
    pub addr: SocketAddr,
    /// It runs on this node.
    pub local: bool,
    /// Its share of new connections; 1 where all have the same.
    pub weight: u16,
}

/// One address a service port answers on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendRow {
    /// The address; none stands for every address of this node that takes NodePorts.
    pub addr: Option<IpAddr>,
    /// The port; 0 for [`Kind::ADDRESS`].
    pub port: u16,
    /// The protocol number; 0 for [`Kind::ADDRESS`].
    pub proto: u8,
    /// Which face of the service it is.
    pub kind: Kind,
    /// How each class of clients is served.
    pub rules: ClientRules,
    /// Only sources in the port's source ranges may use it.
    pub source_ranges: bool,
    /// The slot is found by hashing the client instead of by chance.
    pub hashed: bool,
}

impl FrontendRow {
    /// True when backends of other nodes answer clients of this one by themselves. Such a
    /// frontend has no class of clients that is kept to this node.
    pub fn returns_directly(&self) -> bool {
        self.rules.any(|rule| rule.has(ClientRule::DSR))
    }
}

/// A rule for each [`ClientClass`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientRules {
    /// For [`ClientClass::Pod`].
    pub pod: ClientRule,
    /// For [`ClientClass::Node`].
    pub node: ClientRule,
    /// For [`ClientClass::External`].
    pub external: ClientRule,
}

impl ClientRules {
    /// The same rule for everybody.
    pub fn all(rule: ClientRule) -> Self {
        Self { pod: rule, node: rule, external: rule }
    }

    /// The rule for `class`.
    pub fn of(&self, class: ClientClass) -> ClientRule {
        match class {
            ClientClass::Pod => self.pod,
            ClientClass::Node => self.node,
            ClientClass::External => self.external,
        }
    }

    /// True when `test` holds for a class that may use the frontend at all.
    pub fn any(&self, test: impl Fn(ClientRule) -> bool) -> bool {
        let admitted = |rule: &ClientRule| !rule.has(ClientRule::DENY);
        [self.pod, self.node, self.external].into_iter().filter(admitted).any(test)
    }

    /// The value of a frontend's `rules`.
    pub fn pack(&self) -> u32 {
        ClientRule::pack(self.pod, self.node, self.external)
    }
}

/// Rows that belong to the node and not to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlan {
    /// What the configuration means to the datapath.
    pub settings: Settings,
    /// Addresses the host owns, each with the bits of
    /// [`node_addresses::flags`](proxy_common::maps::node_addresses::flags).
    pub addresses: Box<[(IpAddr, u32)]>,
    /// Ranges in which an address of no service is dropped. While they are unknown, those of the maps stay, and with
    /// them what `settings` says about ranges.
    pub service_cidrs: Option<Box<[IpNet]>>,
}

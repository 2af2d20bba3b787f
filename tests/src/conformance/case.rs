//! The case files, as `tests/cases/README.md` describes them.

use crate::probe::Proto;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value};
use std::{
    collections::BTreeSet,
    iter,
    net::{IpAddr, SocketAddr},
};

/// What must happen to packets, given a node, a configuration and objects.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub struct Case {
    pub name: String,
    pub why: String,
    pub source: String,
    #[serde(default = "both_profiles")]
    pub profile: Vec<Profile>,
    pub api: Option<String>,
    #[serde(default)]
    pub config: Map<String, Value>,
    #[serde(default)]
    pub node: Map<String, Value>,
    #[serde(default)]
    pub host_listeners: Vec<HostListener>,
    pub proxy_state: Option<ProxyState>,
    #[serde(default)]
    pub objects: Vec<Value>,
    #[serde(default)]
    pub flows: Vec<Flow>,
    #[serde(default)]
    pub health: Vec<Health>,
    pub conntrack: Option<Conntrack>,
    #[serde(default)]
    pub steps: Vec<Step>,
    pub expect_config: Option<ExpectConfig>,
}

/// What is promised for the configuration itself.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub struct ExpectConfig {
    pub valid: bool,
    #[serde(default)]
    pub errors: Vec<String>,
}

/// A set of promises of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// The stricter, newer one: ours.
    Nftables,
    /// The older one.
    Iptables,
}

pub(super) fn both_profiles() -> Vec<Profile> {
    vec![Profile::Nftables, Profile::Iptables]
}

/// What the proxy is made to suffer from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum ProxyState {
    /// Changes of all families wait too long.
    #[serde(rename = "sync-overdue")]
    Overdue,
    /// Changes of IPv6 do.
    #[serde(rename = "sync-overdue-IPv6")]
    OverdueV6,
}

/// A socket that another process of the node holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub struct HostListener {
    pub proto: Proto,
    pub address: IpAddr,
    pub port: u16,
}

/// Entries of connection tracking, and what is left of them after the objects appear.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub struct Conntrack {
    pub before: Vec<Entry>,
    pub deleted: Vec<String>,
    pub kept: Vec<String>,
}

/// An entry of connection tracking.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub struct Entry {
    pub id: String,
    pub proto: Proto,
    pub orig_dst: SocketAddr,
    pub reply_src: SocketAddr,
}

/// A change with its own expectations.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub struct Step {
    #[serde(default)]
    pub apply: Vec<Value>,
    #[serde(default)]
    pub delete: Vec<Reference>,
    #[serde(default)]
    pub node_update: Map<String, Value>,
    #[serde(default)]
    pub restart: bool,
    #[serde(default)]
    pub stop: bool,
    #[serde(default)]
    pub flows: Vec<Flow>,
    #[serde(default)]
    pub health: Vec<Health>,
}

/// Names an object.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub struct Reference {
    pub kind: String,
    #[serde(default)]
    pub namespace: String,
    pub name: String,
}

/// Connections and what becomes of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub struct Flow {
    pub from: IpAddr,
    pub via: Via,
    pub proto: Proto,
    #[serde(deserialize_with = "destination")]
    pub to: SocketAddr,
    pub iface: Option<String>,
    pub id: Option<String>,
    pub repeat: Option<u32>,
    pub clients: Option<u32>,
    pub gap_seconds: Option<f64>,
    pub established: Option<String>,
    pub source_port: Option<u16>,
    #[serde(default = "both_profiles")]
    pub profile: Vec<Profile>,
    pub expect: Expect,
}

impl Flow {
    /// The client addresses: consecutive ones from `from` on.
    pub fn clients(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let from = self.from;
        (0..self.clients.unwrap_or(1)).map(move |number| match from {
            IpAddr::V4(address) => IpAddr::V4((u32::from(address) + number).into()),
            IpAddr::V6(address) => IpAddr::V6((u128::from(address) + u128::from(number)).into()),
        })
    }
}

/// Where a packet enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub enum Via {
    Pod,
    LocalPod,
    Node,
    External,
    RemotePod,
}

/// What is promised for a flow.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub enum Expect {
    OneOf(OneOf),
    Verdict(Decided),
    Backends(Backends),
}

/// Alternatives, one of which holds for all connections.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub struct OneOf {
    pub one_of: Vec<Expect>,
}

/// Connections that reach no backend.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub struct Decided {
    pub verdict: Fate,
}

/// What becomes of a packet that is not sent to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub enum Fate {
    Reject,
    Drop,
    Pass,
}

/// Targets of connections.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub struct Backends {
    pub backends: Vec<SocketAddr>,
    pub snat: Snat,
    pub distribution: Option<Uniform>,
    #[serde(default)]
    pub sticky: bool,
    #[serde(default)]
    pub spread: bool,
    pub same_as: Option<String>,
}

/// The only distribution there is.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub enum Uniform {
    Uniform,
}

/// Whose address the endpoint sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snat {
    /// The client's.
    No,
    /// One of the node's.
    Yes,
    /// The node's when a pod reaches itself, else the client's.
    HairpinOnly,
}

impl<'de> Deserialize<'de> for Snat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(false) => Ok(Self::No),
            Value::Bool(true) => Ok(Self::Yes),
            Value::String(text) if text == "hairpin-only" => Ok(Self::HairpinOnly),
            other => Err(D::Error::custom(format!("snat: {other}"))),
        }
    }
}

/// An HTTP answer of the node.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs, reason = "the format is described beside the cases")]
pub struct Health {
    pub port: u16,
    pub address: Option<IpAddr>,
    pub path: Option<String>,
    pub status: Option<u16>,
    pub local_endpoints: Option<u64>,
    #[serde(default)]
    pub headers: Map<String, Value>,
    #[serde(default)]
    pub body: Map<String, Value>,
    #[serde(default)]
    pub closed: bool,
}

/// `ADDRESS:PORT`, or an address alone, which stands for port 0.
fn destination<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let address = text.parse().or_else(|_| text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 0)));
    address.map_err(|_| D::Error::custom(format!("{text:?} is no address")))
}

/// The addresses in fields of a node, if they are among them.
pub(super) fn addresses(node: &Map<String, Value>) -> Option<serde_json::Result<Vec<IpAddr>>> {
    node.get("addresses").map(|addresses| serde_json::from_value(addresses.clone()))
}

impl Case {
    /// Why it is not for us, or not for an agent fed by an API server.
    pub(super) fn reason_to_skip(&self, by_api_server: bool) -> Option<&'static str> {
        if !self.profile.contains(&Profile::Nftables) {
            Some("promised by another profile")
        } else if by_api_server && self.api.as_deref() == Some("fake-only") {
            Some("an API server refuses its objects")
        } else {
            None
        }
    }

    /// Every flow of the case that its profile promises, in all steps.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        let steps = self.steps.iter().flat_map(|step| &step.flows);
        self.flows.iter().chain(steps).filter(|flow| flow.profile.contains(&Profile::Nftables))
    }

    /// Every address that the node ever has.
    pub(super) fn node_addresses(&self) -> Result<BTreeSet<IpAddr>, serde_json::Error> {
        let nodes = iter::once(&self.node).chain(self.steps.iter().map(|step| &step.node_update));
        nodes.filter_map(addresses).try_fold(BTreeSet::new(), |mut all, more| {
            all.extend(more?);
            Ok(all)
        })
    }

    /// Every object that ever exists.
    pub fn objects(&self) -> impl Iterator<Item = &Value> {
        self.objects.iter().chain(self.steps.iter().flat_map(|step| &step.apply))
    }
}

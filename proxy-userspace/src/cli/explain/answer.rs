//! The answer, as programs read it.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

/// Why a connection goes where it goes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Who connects.
    pub client: Client,
    /// Where to.
    pub destination: SocketAddr,
    /// TCP, UDP or SCTP.
    pub protocol: &'static str,
    /// The service's address that answers there, if any.
    pub frontend: Option<Frontend>,
    /// Why none does.
    pub no_frontend: Option<String>,
    /// A connection that exists already between these ends. It decides, whatever the rest says.
    pub connection: Option<Connection>,
    /// To whom the client sticks.
    pub affinity: Option<Affinity>,
    /// Whom the frontend's rule for this client lets choose among.
    pub candidates: Vec<Candidate>,
    /// What happens, in order.
    pub steps: Vec<Step>,
    /// Who answers.
    pub backend: Option<SocketAddr>,
    /// Who the backend sees as its client, and why.
    pub source: Option<Source>,
    /// How it ends.
    pub verdict: Verdict,
}

/// Who connects.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Client {
    /// Address and port. The port stands for any where none was asked for.
    pub address: SocketAddr,
    /// `pod`, `node` or `external`: whose rule counts.
    pub class: &'static str,
    /// What makes it that.
    pub why: String,
    /// The device its packets come in by; of a process of this host, the one they leave by.
    pub device: Option<String>,
}

/// One address that a service answers on.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Frontend {
    /// Namespace, name and port name.
    pub service: String,
    /// Key in the map `services`.
    pub service_id: u32,
    /// Which face of the service it is.
    pub kind: &'static str,
    /// The row's address; `*` for NodePorts.
    pub address: String,
    /// Its port.
    pub port: u16,
    /// The rule for this class of client, a phrase for each bit.
    pub rule: Vec<&'static str>,
    /// `random` or `maglev`.
    pub algorithm: &'static str,
    /// Seconds a client sticks to its backend; 0 is off.
    pub affinity_seconds: u32,
    /// Whether source ranges admit the client; nothing where there are none.
    pub source_ranges_admit: Option<bool>,
}

/// A row of the connection table.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// Who answers.
    pub backend: SocketAddr,
    /// The packets go on as they come, to the backend's node or to netfilter.
    pub untouched: bool,
    /// Seconds since it was last used.
    pub idle_seconds: u64,
}

/// A row of the affinity table.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    /// Who answered last; nothing if that backend is gone.
    pub backend: Option<SocketAddr>,
    /// Seconds it still holds.
    pub left_seconds: Option<u64>,
    /// It holds, and the backend is among the candidates.
    pub counts: bool,
}

/// One backend to choose.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// Address and port; nothing if a slot names a backend that does not exist.
    pub address: Option<SocketAddr>,
    /// Key in the map `backends`.
    pub backend_id: u32,
    /// Runs on this node.
    pub local: bool,
    /// Its part of the slots, between 0 and 1.
    pub share: f64,
    /// This time.
    pub chosen: bool,
}

/// What one hook or the routing does.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// `socket`, `xdp`, `tc-ingress`, `routing` or `tc-egress`.
    pub hook: &'static str,
    /// Where.
    pub device: Option<String>,
    /// What it does, in words.
    pub does: String,
    /// Source and destination afterwards, where a program was run.
    pub packet: Option<[SocketAddr; 2]>,
}

/// The source at the backend.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Address. A port that is drawn differs from one connection to the next.
    pub address: IpAddr,
    /// Why this one.
    pub why: String,
}

/// How it ends.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// In one word.
    pub outcome: Outcome,
    /// The drop reason under which it is counted, if it is refused.
    pub reason: Option<&'static str>,
    /// In a sentence.
    pub summary: String,
}

/// How it ends, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// A backend gets it.
    Delivered,
    /// The client is told at once that nobody is there.
    Rejected,
    /// The client hears nothing.
    Dropped,
    /// It is nothing to shunt: it goes on as it came.
    Untouched,
}

impl Outcome {
    /// The word.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Delivered => "delivered",
            Outcome::Rejected => "rejected",
            Outcome::Dropped => "dropped",
            Outcome::Untouched => "untouched",
        }
    }
}

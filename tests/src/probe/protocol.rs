//! What is said between the harness and a probe process: one JSON document per line.

use crate::{
    late,
    load::{Counts, Kind},
    netns::Namespace,
};
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

/// How long to wait where an answer is expected, on a busy machine.
pub const PATIENCE_MS: u64 = 10_000;

/// Protocols a probe speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Proto {
    /// A connection with one line in each direction.
    Tcp,
    /// One datagram in each direction.
    Udp,
    /// INIT and INIT ACK on raw sockets: the kernel may lack SCTP.
    Sctp,
    /// Echo request and reply; ports are zero.
    Icmp,
    /// A GET and its answer.
    Http,
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Proto::Tcp => "TCP",
            Proto::Udp => "UDP",
            Proto::Sctp => "SCTP",
            Proto::Icmp => "ICMP",
            Proto::Http => "HTTP",
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Serve(Serve),
    Forward(Forward),
    Dial(Dial),
    Exchange(Exchange),
    Arrivals,
    Load(Traffic),
    LoadCounts,
    EndLoad,
    Calls(Calls),
    Datagrams(Datagrams),
    Share(Share),
    Steps(Steps),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    Outcomes(Vec<Outcome>),
    Arrivals(Vec<Arrival>),
    Counts(Vec<Counts>),
    Failed(String),
}

/// Listening sockets of one namespace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Serve {
    /// File of the namespace.
    pub netns: PathBuf,
    /// Who the answers say they come from.
    pub name: String,
    /// Where to listen; the unspecified address takes all.
    pub sockets: Vec<(Proto, SocketAddr)>,
}

/// A load balancer: connections to one address go on to others, in turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Forward {
    /// File of the namespace.
    pub netns: PathBuf,
    /// Who the arrivals say they reached.
    pub name: String,
    /// Where to listen for TCP.
    pub listen: SocketAddr,
    /// Where to connect.
    pub to: Vec<SocketAddr>,
}

/// Connections to open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dial {
    /// File of the client's namespace.
    pub netns: PathBuf,
    /// Protocol.
    pub proto: Proto,
    /// Source address; without one the kernel chooses.
    pub from: Option<IpAddr>,
    /// Source port; without one the kernel chooses. One socket is kept per source port.
    pub source_port: Option<u16>,
    /// Destination. The port means nothing to ICMP.
    pub to: SocketAddr,
    /// How many, one after the other. It ends early when several in a row get no answer.
    pub count: u32,
    /// How long to wait for each; [`PATIENCE_MS`] unless silence is expected.
    pub timeout_ms: u64,
    /// Pause before each.
    pub gap_ms: u64,
    /// Keeps the last connection open under this name, for [`Exchange`].
    pub keep: Option<String>,
}

impl Dial {
    /// One connection, with whatever source the kernel chooses.
    pub fn new(netns: &Namespace, proto: Proto, to: SocketAddr) -> Self {
        Self {
            netns: netns.path(),
            proto,
            from: None,
            source_port: None,
            to,
            count: 1,
            timeout_ms: PATIENCE_MS,
            gap_ms: 0,
            keep: None,
        }
    }
}

/// UDP sockets to connect, and to close at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Calls {
    /// File of the client's namespace.
    pub netns: PathBuf,
    /// Destination.
    pub to: SocketAddr,
    /// What they are bound to, one after the other: any address. The kernel chooses a port that is 0, and is
    /// left to choose an address that is unspecified.
    pub from: Vec<SocketAddr>,
    /// How many there are of each, each connected by a thread of its own at the same time.
    pub at_once: usize,
}

/// Datagrams that one socket sends by address, each answered before the next.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Datagrams {
    /// File of the client's namespace.
    pub netns: PathBuf,
    /// Name of the socket, which is opened for the first of its datagrams and kept.
    pub socket: String,
    /// Destinations, of one family.
    pub to: Vec<SocketAddr>,
}

/// UDP sockets that send by address, each shared by several threads, one socket after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Share {
    /// File of the client's namespace.
    pub netns: PathBuf,
    /// Where the threads send, one for each. All begin at the same time.
    pub to: Vec<SocketAddr>,
    /// Sockets.
    pub sockets: usize,
    /// Datagrams that each thread sends by a socket, before it reads as many answers, to whomever.
    pub datagrams: usize,
}

/// One socket that is used in one way after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Steps {
    /// File of the client's namespace.
    pub netns: PathBuf,
    /// TCP or UDP.
    pub proto: Proto,
    /// What is done with it, by addresses of one family.
    pub steps: Vec<Step>,
    /// Keeps it open under this name, for [`Exchange`] with whom it is connected to in the end. Of UDP alone.
    pub keep: Option<String>,
}

/// What is done with a socket.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Step {
    /// Connects it, and asks whom it is connected to.
    Connect(SocketAddr),
    /// Asks whom it is connected to.
    Ask,
    /// Asks somebody else by a datagram.
    AskAt(SocketAddr),
    /// Connects it to nobody.
    Disconnect,
}

/// Continuous traffic of one kind; see [`load`](crate::load).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Traffic {
    /// File of the client's namespace.
    pub netns: PathBuf,
    /// Kind.
    pub kind: Kind,
    /// Destination.
    pub to: SocketAddr,
}

/// Another exchange on an open connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exchange {
    /// Name given by [`Dial::keep`] or [`Steps::keep`].
    pub keep: String,
    /// How long to wait.
    pub timeout_ms: u64,
    /// Bytes to send along and to ask for.
    pub bulk: Bulk,
}

/// Amounts of data in an exchange over TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bulk {
    /// Bytes from the client.
    pub up: usize,
    /// Bytes from the server.
    pub down: usize,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// A server answered.
    Answered(Answer),
    /// Told at once that nobody is there.
    Refused,
    /// No answer of any kind.
    TimedOut,
    /// The client's own host has dropped the packet and said so. To everybody else it is silence.
    Dropped,
    /// Another error.
    Failed(String),
}

/// Both ends' view of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Answer {
    /// Name of the server.
    pub server: String,
    /// Where the server saw the request arrive.
    pub local: SocketAddr,
    /// Who the server saw as its peer.
    pub saw: SocketAddr,
    /// Who the client sees as its peer: `getpeername`, and the source of datagrams.
    pub peer: SocketAddr,
    /// Bytes the server received beyond the request line, all as they should be.
    pub received: usize,
}

/// A request that reached a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Name of the server.
    pub server: String,
    /// Protocol.
    pub proto: Proto,
    /// Where it arrived.
    pub local: SocketAddr,
    /// Where it came from.
    pub saw: SocketAddr,
}

impl Outcome {
    /// The answer, where one is expected to what `asked` says. That none has come is late; whatever
    /// else came in its place is not.
    pub fn answer(self, asked: impl fmt::Display) -> Result<Answer> {
        match self {
            Outcome::Answered(answer) => Ok(answer),
            Outcome::TimedOut => bail!(late!("{asked}: no answer")),
            other => bail!("{asked}: {other}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Answered(answer) => answer.fmt(f),
            Outcome::Refused => f.write_str("refused"),
            Outcome::TimedOut => f.write_str("no answer"),
            Outcome::Dropped => f.write_str("dropped by its own host"),
            Outcome::Failed(reason) => f.write_str(reason),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} saw {}", self.server, self.local, self.saw)
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} got {} from {}", self.server, self.local, self.proto, self.saw)
    }
}

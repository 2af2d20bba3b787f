//! Clients and servers that are told what to do, in processes of their own: a process is what a
//! cgroup holds, and what is kept on a CPU.

mod drive;
mod flood;
mod held;
mod newcomers;
mod serve;
mod syn;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use held::Held;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

pub use flood::{Flood, Flooded};
pub use held::{Asked, Hold};
pub use newcomers::{Newcomers, Open};

use super::cpus;
use crate::{
    cgroup::Cgroup,
    lines::{self, Lines},
    process::Spawn as _,
};

/// What a request is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Connect, 64 bytes there, 64 bytes back, close.
    TcpConnect,
    /// 64 bytes there and back on an open connection.
    TcpRequest,
    /// A stream of data; what counts is the MiB.
    TcpStream,
    /// A datagram of 64 bytes there and back, each from a new socket.
    UdpFlow,
    /// A datagram of 64 bytes there and back on one connected socket.
    UdpRequest,
}

impl Workload {
    /// As options and reports name it.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Index of the port that takes it: requests, streams, datagrams.
    pub fn port(self) -> usize {
        match self {
            Self::TcpConnect | Self::TcpRequest => 0,
            Self::TcpStream => 1,
            Self::UdpFlow | Self::UdpRequest => 2,
        }
    }
}

/// Requests, one after the other.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Drive {
    /// Where the client's sockets are.
    pub netns: PathBuf,
    /// Addresses that new connections and flows come from, in turn; none leaves it to the kernel.
    pub from: Vec<IpAddr>,
    /// Where requests go, in turn.
    pub to: Vec<SocketAddr>,
    /// What they are.
    pub workload: Workload,
    /// For how long.
    pub nanoseconds: u64,
    /// At most so many.
    pub limit: Option<u64>,
}

/// What became of a [`Drive`].
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Driven {
    /// Requests that were answered; for a stream, MiB that arrived.
    pub units: f64,
    /// Requests that were not.
    pub failed: u64,
    /// How long it took.
    pub nanoseconds: u64,
    /// Of connecting, or of the whole request where nothing connects: median, in nanoseconds.
    pub p50: f64,
    /// The same, 99th percentile.
    pub p99: f64,
}

/// Which addresses and ports a pod answers on.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Serve {
    /// Where its sockets are.
    pub netns: PathBuf,
    /// Its addresses. A datagram's answer has to come from the one it was sent to.
    pub addresses: Vec<IpAddr>,
    /// For requests, streams and datagrams, each time.
    pub ports: [[u16; 3]; 2],
    /// Many connections at once, each as long as its client wants, instead of one after the other.
    pub at_once: bool,
}

#[derive(Debug, Deserialize, Serialize)]
enum Request {
    Serve(Serve),
    Drive(Drive),
    Flood(Flood),
    Open(Open),
    Hold(Hold),
    AskHeld,
}

#[derive(Debug, Deserialize, Serialize)]
enum Reply {
    Done,
    Driven(Driven),
    Flooded(Flooded),
    Opened(Newcomers),
    Asked(Asked),
    Failed(String),
}

/// A process with clients and servers.
#[derive(Debug)]
pub struct Ends(Lines);

impl Ends {
    /// Starts one that stays on `cpus`, in `cgroup` if given.
    pub fn start(cpus: &[usize], cgroup: Option<&Cgroup>) -> Result<Self> {
        let program = std::env::current_exe().context("path of the running program")?;
        let mut command = Command::new(program);
        let cpus: Vec<_> = cpus.iter().map(usize::to_string).collect();
        command.args(["ends", "--cpus", &cpus.join(",")]);
        if let Some(cgroup) = cgroup {
            command.cgroup(cgroup)?;
        }
        Lines::start(&mut command).map(Self)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Answers from then on.
    pub fn serve(&mut self, serve: Serve) -> Result<()> {
        match self.ask(&Request::Serve(serve))? {
            Reply::Done => Ok(()),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Sends requests.
    pub fn drive(&mut self, drive: Drive) -> Result<Driven> {
        match self.ask(&Request::Drive(drive))? {
            Reply::Driven(driven) => Ok(driven),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Sends SYNs from forged addresses.
    pub fn flood(&mut self, flood: Flood) -> Result<Flooded> {
        match self.ask(&Request::Flood(flood))? {
            Reply::Flooded(flooded) => Ok(flooded),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Opens connections at a steady rate.
    pub fn open(&mut self, open: Open) -> Result<Newcomers> {
        match self.ask(&Request::Open(open))? {
            Reply::Opened(newcomers) => Ok(newcomers),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Opens connections and keeps them, instead of those that it has kept so far.
    pub fn hold(&mut self, hold: Hold) -> Result<()> {
        match self.ask(&Request::Hold(hold))? {
            Reply::Done => Ok(()),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Sends a request on each of the connections that it keeps.
    pub fn ask_held(&mut self) -> Result<Asked> {
        match self.ask(&Request::AskHeld)? {
            Reply::Asked(asked) => Ok(asked),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply> {
        self.0.say(request)?;
        match self.0.hear()? {
            Reply::Failed(reason) => bail!("{reason}"),
            reply => Ok(reply),
        }
    }
}

/// The process itself: does what standard input says until that ends.
pub fn work(cpus: &[usize]) -> Result<()> {
    cpus::restrict(cpus)?;
    // A descriptor for each connection.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("open many files")?;
    let mut held = Held::default();
    lines::carry_out(|line| {
        carry_out(line, &mut held).unwrap_or_else(|error| Reply::Failed(format!("{error:#}")))
    })
}

fn carry_out(line: &str, held: &mut Held) -> Result<Reply> {
    Ok(match serde_json::from_str(line)? {
        Request::Serve(request) => {
            serve::start(&request)?;
            Reply::Done
        }
        Request::Drive(request) => Reply::Driven(drive::run(&request)?),
        Request::Flood(request) => Reply::Flooded(flood::run(&request)?),
        Request::Open(request) => Reply::Opened(newcomers::run(&request)?),
        Request::Hold(request) => {
            *held = Held::open(&request)?;
            Reply::Done
        }
        Request::AskHeld => Reply::Asked(held.ask()),
    })
}

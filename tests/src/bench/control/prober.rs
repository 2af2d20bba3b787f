//! A process that asks a service as a client pod would, and the backends that answer with their
//! names. Apart from the harness, whose other work would show in the times.

mod stream;
mod work;

pub use work::work;

use crate::{cgroup::Cgroup, lines::Lines, netns::Namespace, process::Spawn as _};
use anyhow::{Context as _, Result, bail};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::{env, net::SocketAddr, path::PathBuf, process::Command, time::Duration};

/// What is said to the process: one document per line.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Answer there from now on with this name.
    Serve { netns: PathBuf, name: String, listen: SocketAddr },
    /// Ask until it answers.
    Await(Await),
    /// Ask, one request after the other, until told to end.
    Stream { netns: PathBuf, to: SocketAddr },
    /// End that.
    EndStream,
}

/// A service that is to answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Await {
    /// The file of the client's namespace.
    pub(super) netns: PathBuf,
    /// The service.
    pub(super) to: SocketAddr,
    /// Who is to answer; otherwise anybody.
    pub(super) server: Option<String>,
    /// When to give up.
    pub(super) limit_ms: u64,
}

/// What it says.
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Done,
    /// When the answer came, by [`now`].
    Answered(Option<Duration>),
    Streamed(Streamed),
    Failed(String),
}

/// Requests one after the other, each from a port of its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Streamed {
    /// Of those that were answered, in microseconds.
    pub(super) latencies_us: Vec<f64>,
    /// Those that were not.
    pub(super) lost: u64,
}

/// A clock that all processes of the machine share.
pub(super) fn now() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_MONOTONIC).context("read the clock")?.into())
}

/// The process.
#[derive(Debug)]
pub(super) struct Prober(Lines);

impl Prober {
    /// Starts it as one of the processes of a node.
    pub(super) fn start(cgroup: &Cgroup) -> Result<Self> {
        let mut command = Command::new(env::current_exe().context("path of the running program")?);
        Lines::start(command.arg("prober").cgroup(cgroup)?).map(Self)
    }

    /// Answers in a namespace from now on.
    pub(super) fn serve(&mut self, netns: &Namespace, name: &str, listen: SocketAddr) -> Result<()> {
        self.done(&Request::Serve { netns: netns.path(), name: name.into(), listen })
    }

    /// Begins to ask; [`Self::answered`] has to follow.
    pub(super) fn begin(&mut self, wanted: Await) -> Result<()> {
        self.say(&Request::Await(wanted))
    }

    /// When what was begun was answered, by [`now`].
    pub(super) fn answered(&mut self) -> Result<Option<Duration>> {
        match self.reply()? {
            Reply::Answered(at) => Ok(at),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Begins a stream of requests.
    pub(super) fn stream(&mut self, netns: &Namespace, to: SocketAddr) -> Result<()> {
        self.done(&Request::Stream { netns: netns.path(), to })
    }

    /// Ends it.
    pub(super) fn end_stream(&mut self) -> Result<Streamed> {
        self.say(&Request::EndStream)?;
        match self.reply()? {
            Reply::Streamed(streamed) => Ok(streamed),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    fn done(&mut self, request: &Request) -> Result<()> {
        self.say(request)?;
        match self.reply()? {
            Reply::Done => Ok(()),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    fn say(&mut self, request: &Request) -> Result<()> {
        self.0.say(request)
    }

    fn reply(&mut self) -> Result<Reply> {
        match self.0.hear()? {
            Reply::Failed(reason) => bail!("prober: {reason}"),
            reply => Ok(reply),
        }
    }
}

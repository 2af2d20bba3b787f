//! Servers and clients in namespaces, driven from outside them.
//!
//! A [`Worker`] is a process of its own, because a process is what a cgroup holds: the
//! sockets of a node and its pods belong to a worker in the node's cgroup, those of
//! everybody else to a worker outside it. One worker serves any number of namespaces.

mod calls;
mod dial;
mod forward;
mod http;
mod icmp;
mod load;
mod protocol;
mod sctp;
mod serve;
mod share;
mod socket;
mod steps;
mod tcp;
mod udp;
mod work;

pub use protocol::{
    Answer, Arrival, Bulk, Calls, Datagrams, Dial, Exchange, Forward, Outcome, PATIENCE_MS, Proto, Serve,
    Share, Step, Steps, Traffic,
};
pub use work::work;

use crate::{
    cgroup::Cgroup,
    lines::Lines,
    load::Counts,
    process::{Spawn, binary},
};
use anyhow::{Context, Result, bail};
use protocol::{Reply, Request};
use std::{
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A process that opens sockets in namespaces on request.
#[derive(Debug)]
pub struct Worker(Mutex<Lines>);

impl Worker {
    /// Starts one, in `cgroup` if given.
    pub fn start(cgroup: Option<&Cgroup>) -> Result<Self> {
        let mut command = Command::new(binary("probe")?);
        if let Some(cgroup) = cgroup {
            command.cgroup(cgroup)?;
        }
        Ok(Self(Mutex::new(Lines::start(&mut command)?)))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.lines().id()
    }

    /// Opens listening sockets and answers on them from then on.
    pub fn serve(&self, serve: Serve) -> Result<()> {
        self.done(&Request::Serve(serve))
    }

    /// Passes connections on from then on. Each counts as an arrival.
    pub fn forward(&self, forward: Forward) -> Result<()> {
        self.done(&Request::Forward(forward))
    }

    /// Opens connections one after the other.
    pub fn dial(&self, dial: &Dial) -> Result<Vec<Outcome>> {
        self.outcomes(&Request::Dial(dial.clone()))
    }

    /// Connects sockets; an error if one of them is refused.
    pub fn call(&self, calls: Calls) -> Result<()> {
        self.done(&Request::Calls(calls))
    }

    /// Sends datagrams by address.
    pub fn send(&self, datagrams: Datagrams) -> Result<Vec<Outcome>> {
        self.outcomes(&Request::Datagrams(datagrams))
    }

    /// Sends datagrams by address from sockets that threads share; how it went for each thread.
    pub fn share(&self, share: Share) -> Result<Vec<Outcome>> {
        self.outcomes(&Request::Share(share))
    }

    /// Uses a socket in one way after the other; how each went, but for those that ask nobody.
    pub fn walk(&self, steps: Steps) -> Result<Vec<Outcome>> {
        self.outcomes(&Request::Steps(steps))
    }

    /// Another exchange on a connection that a dial kept.
    pub fn exchange(&self, exchange: Exchange) -> Result<Outcome> {
        let outcomes = self.outcomes(&Request::Exchange(exchange))?;
        outcomes.into_iter().next().context("no outcome")
    }

    /// What reached the servers since the last call.
    pub fn arrivals(&self) -> Result<Vec<Arrival>> {
        match self.ask(&Request::Arrivals)? {
            Reply::Arrivals(arrivals) => Ok(arrivals),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Starts continuous traffic.
    pub(crate) fn load(&self, traffic: &Traffic) -> Result<()> {
        self.done(&Request::Load(traffic.clone()))
    }

    /// Counts of all traffic, in the order it was started.
    pub(crate) fn load_counts(&self) -> Result<Vec<Counts>> {
        self.counts(&Request::LoadCounts)
    }

    /// Ends all traffic; the last counts.
    pub(crate) fn end_load(&self) -> Result<Vec<Counts>> {
        self.counts(&Request::EndLoad)
    }

    fn counts(&self, request: &Request) -> Result<Vec<Counts>> {
        match self.ask(request)? {
            Reply::Counts(counts) => Ok(counts),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    fn done(&self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    fn outcomes(&self, request: &Request) -> Result<Vec<Outcome>> {
        match self.ask(request)? {
            Reply::Outcomes(outcomes) => Ok(outcomes),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, request: &Request) -> Result<Reply> {
        let mut lines = self.lines();
        lines.say(request)?;
        match lines.hear()? {
            Reply::Failed(reason) => bail!("probe: {reason}"),
            reply => Ok(reply),
        }
    }
}

//! Continuous traffic: a thread per kind, and counts that can be read meanwhile.

mod datagrams;
mod segments;
mod stream;

pub(super) use segments::Segments;

use super::{Traffic, udp};
use crate::{
    load::{Counts, Ending, Kind, PATIENCE},
    netns,
};
use anyhow::Result;
use std::{
    fs::File,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// All flows of this process, in the order they were asked for.
#[derive(Default)]
pub(super) struct Loads(Vec<(Flow, JoinHandle<()>)>);

impl Loads {
    pub(super) fn start(&mut self, traffic: Traffic) -> Result<()> {
        let file = File::open(&traffic.netns)?;
        let flow = Flow::default();
        let running = flow.clone();
        let handle = thread::spawn(move || {
            let ended = netns::inside(&file, || running.run(&traffic));
            if let Err(error) = ended {
                running.count(&Ending::Failed, || format!("the load itself ended: {error:#}"));
            }
        });
        self.0.push((flow, handle));
        Ok(())
    }

    pub(super) fn counts(&self) -> Vec<Counts> {
        self.0.iter().map(|(flow, _)| flow.counts().clone()).collect()
    }

    pub(super) fn end(&mut self) -> Vec<Counts> {
        self.0.iter().for_each(|(flow, _)| flow.ends.store(true, Ordering::Relaxed));
        let ended = self.0.drain(..).map(|(flow, handle)| {
            // A thread that panicked has said so, and its counts lack successes.
            let _ = handle.join();
            flow.counts().clone()
        });
        ended.collect()
    }
}

/// What the thread of a flow and its readers share.
#[derive(Clone)]
struct Flow {
    counts: Arc<Mutex<Counts>>,
    ends: Arc<AtomicBool>,
    start: Instant,
}

impl Default for Flow {
    fn default() -> Self {
        Self { counts: Arc::default(), ends: Arc::default(), start: Instant::now() }
    }
}

impl Flow {
    fn run(&self, traffic: &Traffic) -> Result<()> {
        match traffic.kind {
            Kind::Stream => stream::streams(self, traffic.to),
            Kind::Connections => stream::connections(self, traffic.to),
            Kind::Datagrams => datagrams::numbered(self, traffic.to),
            Kind::Queries => datagrams::queries(self, traffic.to),
        }
    }

    fn is_over(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a fact about an attempt for the report.
    fn tell(&self, fact: &str) {
        let at = self.start.elapsed().as_secs_f64();
        self.counts().tell(format!("at {at:.3} s: {fact}"));
    }

    /// Counts an attempt that has ended.
    fn count(&self, ending: &Ending, told: impl FnOnce() -> String) {
        let at = self.start.elapsed().as_secs_f64();
        self.counts().record(ending, || format!("at {at:.3} s: {ending:?}: {}", told()));
    }

    /// Counts an attempt that took this long.
    fn count_timed(&self, took: Duration, ended: Result<()>) -> Ending {
        let ending = ended.as_ref().err().map_or(Ending::Ok, ending_of);
        self.count(&ending, || ended.err().map(|error| format!("{error:#}")).unwrap_or_default());
        let mut counts = self.counts();
        counts.longest_ms = counts.longest_ms.max(took.as_millis() as u64);
        ending
    }
}

/// Something that arrived, but is not what should have.
#[derive(Debug)]
pub(super) struct Wrong(pub(super) Ending, pub(super) String);

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.1)
    }
}

impl std::error::Error for Wrong {}

fn ending_of(error: &anyhow::Error) -> Ending {
    if let Some(Wrong(ending, _)) = error.downcast_ref() {
        return ending.clone();
    }
    let Some(error) = error.downcast_ref::<io::Error>() else { return Ending::Damaged };
    match error.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::PermissionDenied => Ending::Refused,
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
            Ending::Reset
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Ending::TimedOut,
        _ => Ending::Failed,
    }
}

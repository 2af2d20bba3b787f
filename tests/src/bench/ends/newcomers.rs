//! Clients that come at a steady rate, whether those before them have been answered or not.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::drive::connect_and_ask;
use crate::{
    bench::statistics::{percentile, sorted},
    netns::inside,
};

/// The kernel sends a SYN again when no answer has come for so long.
const RESENT: Duration = Duration::from_secs(1);

/// New connections: connect, 64 bytes there, 64 bytes back, close.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Open {
    /// Where the client's sockets are.
    pub netns: PathBuf,
    /// Where they go, in turn.
    pub to: Vec<SocketAddr>,
    /// How many begin in a second.
    pub per_second: u32,
    /// For how long.
    pub nanoseconds: u64,
}

/// What became of them.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Newcomers {
    /// Connections that were tried.
    pub tried: u64,
    /// Those that did not come about, or had no answer.
    pub failed: u64,
    /// Those that were answered, but had to send their first packet again.
    pub resent: u64,
    /// Median time to connect, in µs.
    pub p50_micros: f64,
    /// The 99th percentile of the same.
    pub p99_micros: f64,
}

impl Newcomers {
    fn of(times: &[io::Result<Duration>]) -> Self {
        let answered: Vec<Duration> = times.iter().filter_map(|time| time.as_ref().ok().copied()).collect();
        let micros = sorted(answered.iter().map(|time| time.as_secs_f64() * 1e6));
        Self {
            tried: times.len() as u64,
            failed: (times.len() - answered.len()) as u64,
            resent: answered.iter().filter(|time| **time >= RESENT).count() as u64,
            p50_micros: percentile(&micros, 0.5),
            p99_micros: percentile(&micros, 0.99),
        }
    }

    /// The share of connections that failed; 0 of none.
    pub fn failed_share(&self) -> f64 {
        self.failed as f64 / self.tried.max(1) as f64
    }
}

/// Opens them, and waits for the last.
pub(super) fn run(open: &Open) -> Result<Newcomers> {
    ensure!(!open.to.is_empty() && open.per_second > 0, "connections need a destination and a rate");
    let netns = File::open(&open.netns).with_context(|| format!("open {}", open.netns.display()))?;
    inside(&netns, || {
        let (sender, times) = mpsc::channel();
        let (begin, length) = (Instant::now(), Duration::from_nanos(open.nanoseconds));
        let interval = Duration::from_secs(1) / open.per_second;
        let moments = (0u32..).map(|number| interval * number).take_while(|moment| *moment < length);
        thread::scope(|scope| {
            for (moment, to) in moments.zip(open.to.iter().cycle()) {
                thread::sleep(moment.saturating_sub(begin.elapsed()));
                let sender = sender.clone();
                // The receiver lives longer than the scope.
                scope.spawn(move || sender.send(connect_and_ask(*to, None)));
            }
        });
        drop(sender);
        Ok(Newcomers::of(&times.into_iter().collect::<Vec<_>>()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn who_waits_for_a_second_has_asked_again() {
        let millis = |millis| Ok(Duration::from_millis(millis));
        let newcomers =
            Newcomers::of(&[millis(1), millis(3), millis(1_020), Err(ErrorKind::TimedOut.into())]);
        assert_eq!((newcomers.tried, newcomers.failed, newcomers.resent), (4, 1, 1));
        assert_eq!((newcomers.p50_micros, newcomers.failed_share()), (3_000.0, 0.25));
        assert_eq!(Newcomers::of(&[]).failed_share(), 0.0);
    }
}

//! Requests one after the other, on a thread of their own.

use super::{Streamed, work::ask};
use crate::netns;
use anyhow::{Result, anyhow};
use std::{
    fs::File,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// What has no answer by then is lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between an answer and the next request.
const GAP: Duration = Duration::from_millis(2);

/// A stream that runs.
#[derive(Debug)]
pub(super) struct Stream {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<Streamed>>,
}

impl Stream {
    pub(super) fn start(netns: &Path, to: SocketAddr) -> Result<Self> {
        let file = File::open(netns)?;
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let thread = thread::spawn(move || netns::inside(&file, || run(to, &ended)));
        Ok(Self { ends, thread })
    }

    pub(super) fn end(self) -> Result<Streamed> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the stream panicked"))?
    }
}

fn run(to: SocketAddr, ends: &AtomicBool) -> Result<Streamed> {
    let mut streamed = Streamed::default();
    let mut buffer = [0; 64];
    while !ends.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let socket = ask(to)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        match socket.recv(&mut buffer) {
            Ok(_) => streamed.latencies_us.push(begin.elapsed().as_secs_f64() * 1e6),
            Err(_) => streamed.lost += 1,
        }
        thread::sleep(GAP);
    }
    Ok(streamed)
}

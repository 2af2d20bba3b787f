//! Threads that do something at the same time, again and again.

use anyhow::{Result, ensure};
use std::{
    hint,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

/// How long one thread waits for the others, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Looks before a thread that waits lets another one have its CPU.
const LOOKS: u32 = 10_000;

/// Where they meet.
#[derive(Debug)]
pub struct Together {
    count: usize,
    ready: AtomicUsize,
}

impl Together {
    /// For so many threads.
    pub fn new(count: usize) -> Self {
        Self { count, ready: AtomicUsize::new(0) }
    }

    /// Waits until all have come to the round, which each counts for itself from 0 on.
    pub fn wait(&self, round: usize) -> Result<()> {
        self.ready.fetch_add(1, SeqCst);
        let (all, begin) = ((round + 1) * self.count, Instant::now());
        while (0..LOOKS).all(|_| !self.is_there(all)) {
            ensure!(begin.elapsed() < PATIENCE, "another thread has ended");
            thread::yield_now();
        }
        Ok(())
    }

    fn is_there(&self, all: usize) -> bool {
        hint::spin_loop();
        self.ready.load(SeqCst) >= all
    }
}

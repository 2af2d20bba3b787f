//! How far a measurement is, and about how long it still takes.

use std::time::{Duration, Instant};

/// Of steps that take about as long as each other.
#[derive(Debug)]
pub struct Progress {
    begin: Instant,
    done: usize,
    all: usize,
}

impl Progress {
    /// Nothing is done yet.
    pub fn new(all: usize) -> Self {
        Self { begin: Instant::now(), done: 0, all }
    }

    /// A step is done that took time; says where that is.
    pub fn step(&mut self, what: &str) {
        self.done += 1;
        println!("{what}: {}", self.text(self.begin.elapsed()));
    }

    /// So many steps were done before, or are left out.
    pub fn skip(&mut self, steps: usize) {
        self.all = self.all.saturating_sub(steps);
    }

    fn text(&self, elapsed: Duration) -> String {
        let left = self.all.saturating_sub(self.done);
        let each = elapsed.as_secs_f64() / self.done.max(1) as f64;
        let minutes = each * left as f64 / 60.0;
        format!("{} of {}, about {minutes:.0} min left", self.done, self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_takes_as_long_as_what_is_done() {
        let mut progress = Progress::new(10);
        progress.skip(1);
        progress.step("1");
        progress.step("2");
        progress.step("3");
        assert_eq!(progress.text(Duration::from_secs(180)), "3 of 9, about 6 min left");
    }
}

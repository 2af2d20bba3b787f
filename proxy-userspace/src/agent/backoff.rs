//! How long to wait before trying again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);

/// Doubles the pause with each failure in a row.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after one more failure.
    pub(super) fn next(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(2u32.saturating_pow(self.failures)).min(LONGEST);
        self.failures += 1;
        pause
    }

    /// It worked.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..10).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(pauses[..4], [200, 400, 800, 1600]);
        assert_eq!(pauses[9], 30_000);
        backoff.failures = 1000;
        assert_eq!(backoff.next(), LONGEST);
        backoff.reset();
        assert_eq!(backoff.next(), FIRST);
    }
}

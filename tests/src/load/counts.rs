//! What became of the traffic of one kind on one path.

use serde::{Deserialize, Serialize};
use std::fmt;

/// So many failures are told in words; the rest is counted.
const TOLD: usize = 8;

/// A way to use a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One TCP connection that carries data both ways all the time, every byte compared.
    Stream,
    /// TCP connections: connect, request, answer, orderly close.
    Connections,
    /// Numbered datagrams from one socket, each answered.
    Datagrams,
    /// One datagram and its answer from a socket of its own, as for DNS.
    Queries,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Stream => "stream",
            Kind::Connections => "connections",
            Kind::Datagrams => "datagrams",
            Kind::Queries => "queries",
        })
    }
}

/// How an attempt ended. An attempt is an exchange on a stream, a connection, or a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Answered, by whom it was sent to and byte for byte.
    Ok,
    /// Told that nobody is there.
    Refused,
    /// An open connection was broken.
    Reset,
    /// No answer, of any kind, within [`PATIENCE`](super::PATIENCE).
    TimedOut,
    /// Data arrived, but not as it was sent.
    Damaged,
    /// The answer came from another address than the one asked.
    Misaddressed,
    /// Anything else.
    Failed,
}

/// Counts since the load began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Begun and ended, however that was.
    pub attempted: u64,
    /// Ended well.
    pub ok: u64,
    /// See [`Ending::Refused`].
    pub refused: u64,
    /// See [`Ending::Reset`].
    pub reset: u64,
    /// See [`Ending::TimedOut`]. Of datagrams: these are lost.
    pub timed_out: u64,
    /// See [`Ending::Damaged`].
    pub damaged: u64,
    /// See [`Ending::Misaddressed`].
    pub misaddressed: u64,
    /// See [`Ending::Failed`].
    pub failed: u64,
    /// TCP segments, SYN included and of both ends of a stream, that were sent again and that the
    /// receiver has not reported to have had twice: the first one did not arrive.
    pub lost_segments: u64,
    /// Segments that were sent again although the first had arrived (DSACK). A busy machine.
    pub spurious: u64,
    /// Answers to a datagram beyond the first.
    pub duplicates: u64,
    /// The longest time to an answer, in ms.
    pub longest_ms: u64,
    /// The first failures and losses in words, with the time since the load began.
    pub told: Vec<String>,
}

impl Counts {
    /// Counts an attempt. `told` is asked for only if it failed.
    pub(crate) fn record(&mut self, ending: &Ending, told: impl FnOnce() -> String) {
        self.attempted += 1;
        let place = match ending {
            Ending::Ok => &mut self.ok,
            Ending::Refused => &mut self.refused,
            Ending::Reset => &mut self.reset,
            Ending::TimedOut => &mut self.timed_out,
            Ending::Damaged => &mut self.damaged,
            Ending::Misaddressed => &mut self.misaddressed,
            Ending::Failed => &mut self.failed,
        };
        *place += 1;
        if *ending != Ending::Ok {
            self.tell(told());
        }
    }

    /// Keeps words for the report, unless there are enough already.
    pub(crate) fn tell(&mut self, told: String) {
        if self.told.len() < TOLD {
            self.told.push(told);
        }
    }

    /// Attempts that did not end well.
    pub fn failures(&self) -> u64 {
        self.attempted - self.ok
    }

    /// Whether nothing failed and nothing had to be sent twice because it was lost.
    pub fn is_lossless(&self) -> bool {
        self.failures() == 0 && self.lost_segments == 0
    }

    /// What was counted between `earlier` and these.
    pub fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            attempted: self.attempted - earlier.attempted,
            ok: self.ok - earlier.ok,
            refused: self.refused - earlier.refused,
            reset: self.reset - earlier.reset,
            timed_out: self.timed_out - earlier.timed_out,
            damaged: self.damaged - earlier.damaged,
            misaddressed: self.misaddressed - earlier.misaddressed,
            failed: self.failed - earlier.failed,
            // A report of the receiver may come after the segment was counted as lost.
            lost_segments: self.lost_segments.saturating_sub(earlier.lost_segments),
            spurious: self.spurious - earlier.spurious,
            duplicates: self.duplicates - earlier.duplicates,
            longest_ms: self.longest_ms,
            told: self.told.get(earlier.told.len()..).unwrap_or_default().to_vec(),
        }
    }

    /// Adds another kind's or path's counts to these.
    pub fn add(&mut self, other: &Counts) {
        self.attempted += other.attempted;
        self.ok += other.ok;
        self.refused += other.refused;
        self.reset += other.reset;
        self.timed_out += other.timed_out;
        self.damaged += other.damaged;
        self.misaddressed += other.misaddressed;
        self.failed += other.failed;
        self.lost_segments += other.lost_segments;
        self.spurious += other.spurious;
        self.duplicates += other.duplicates;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
        self.told.extend(other.told.iter().cloned());
    }
}

/// Everything that is not zero.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} ok", self.ok, self.attempted)?;
        let rest = [
            (self.refused, "refused"),
            (self.reset, "reset"),
            (self.timed_out, "without an answer"),
            (self.damaged, "damaged"),
            (self.misaddressed, "misaddressed"),
            (self.failed, "failed"),
            (self.lost_segments, "segments lost"),
            (self.spurious, "sent twice in vain"),
            (self.duplicates, "duplicates"),
        ];
        for (count, name) in rest.iter().filter(|(count, _)| *count > 0) {
            write!(f, ", {count} {name}")?;
        }
        write!(f, "; longest {} ms", self.longest_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_are_told_and_every_failure_counts() {
        let mut counts = Counts::default();
        counts.record(&Ending::Ok, || unreachable!("nothing failed"));
        assert!(counts.is_lossless());
        let before = counts.clone();
        let endings = [
            Ending::Refused,
            Ending::Reset,
            Ending::TimedOut,
            Ending::Damaged,
            Ending::Misaddressed,
            Ending::Failed,
        ];
        for ending in &endings {
            counts.record(ending, || format!("{ending:?}"));
            assert!(!counts.is_lossless());
        }
        let window = counts.since(&before);
        assert_eq!((window.attempted, window.ok, window.failures(), window.told.len()), (6, 0, 6, 6));
    }

    #[test]
    fn a_segment_that_had_to_be_sent_again_is_a_loss() {
        assert!(!Counts { lost_segments: 1, ..Counts::default() }.is_lossless());
        assert!(Counts { spurious: 1, duplicates: 1, ..Counts::default() }.is_lossless());
    }
}

//! What is kept of a flood.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::bench::{contender::Contender, ends::Newcomers, load::Connections, target::Path};

/// CPUs that others have on a quiet machine at most.
const OTHERS: f64 = 0.1;

/// A contender in a flood.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Flood {
    /// Which way it goes.
    pub path: Path,
    /// Who.
    pub contender: Contender,
    /// SYNs per second that were wished.
    pub wished: u64,
    /// How long SYNs were sent.
    pub seconds: f64,
    /// SYNs that were sent.
    pub sent: u64,
    /// Segments at the backends meanwhile, without those that come at all times.
    pub arrived: u64,
    /// Packets that were dropped at the links on the way, for the other end had no room for them.
    pub no_room: u64,
    /// Connections that were established before.
    pub established: u64,
    /// Those of them that did not answer at the end of the flood.
    pub broken_meanwhile: u64,
    /// Those that did not answer then or after it.
    pub broken: u64,
    /// Honest clients right before the flood.
    pub before: Newcomers,
    /// Honest clients meanwhile.
    pub meanwhile: Newcomers,
    /// Processor time for each SYN in µs: sender, all hosts and backends.
    pub cpu_micros: f64,
    /// CPUs that others of the machine had meanwhile.
    pub others: f64,
    /// `direct` in the same run.
    pub beside: Option<Beside>,
    /// What the contender keeps of connections before.
    pub at_rest: Option<Connections>,
    /// What it keeps at the end.
    pub connections: Option<Connections>,
    /// What the contender has dropped meanwhile, by reason, if it says so.
    pub drops: Option<BTreeMap<String, u64>>,
}

/// What a contender is compared with.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Beside {
    /// Processor time for each SYN, in µs.
    pub cpu_micros: f64,
    /// Share of the new connections that failed.
    pub failed_share: f64,
}

impl Beside {
    /// Of a flood without a proxy.
    pub(super) fn of(direct: &Flood) -> Self {
        Self { cpu_micros: direct.cpu_micros, failed_share: direct.meanwhile.failed_share() }
    }
}

impl Flood {
    /// What tells it from others, in their order.
    pub fn key(&self) -> (Path, u64, Contender) {
        (self.path, self.wished, self.contender)
    }

    /// SYNs sent per second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.sent as f64 / self.seconds } else { 0.0 }
    }

    /// Share of the new connections that failed beyond that of `direct`.
    pub fn failed_beyond(&self) -> Option<f64> {
        self.beside.map(|beside| (self.meanwhile.failed_share() - beside.failed_share).max(0.0))
    }

    /// Processor time over that of `direct`.
    pub fn to_direct(&self) -> Option<f64> {
        self.beside.filter(|beside| beside.cpu_micros > 0.0).map(|beside| self.cpu_micros / beside.cpu_micros)
    }
}

impl fmt::Display for Flood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { broken, established, meanwhile, cpu_micros, others, .. } = self;
        write!(
            f,
            "{:.0} SYNs/s, {broken} of {established} broken, {} of {} new failed, {cpu_micros:.2} us per SYN",
            self.rate(),
            meanwhile.failed,
            meanwhile.tried
        )?;
        if *others >= OTHERS { write!(f, ", others had {others:.2} CPUs") } else { Ok(()) }
    }
}

#[cfg(test)]
pub(in crate::bench) mod tests {
    use super::*;

    pub(in crate::bench) fn flood(path: Path, contender: Contender) -> Flood {
        let before = Newcomers { tried: 250, p50_micros: 90.0, p99_micros: 400.0, ..Newcomers::default() };
        Flood {
            path,
            contender,
            wished: 200_000,
            seconds: 60.0,
            sent: 12_000_000,
            arrived: 11_000_000,
            no_room: 600_000,
            established: 1_000,
            broken_meanwhile: 1,
            broken: 2,
            before,
            meanwhile: Newcomers {
                tried: 3_000,
                failed: 90,
                resent: 30,
                p50_micros: 2_000.0,
                p99_micros: 9_000.0,
            },
            cpu_micros: 6.0,
            others: 0.0,
            beside: Some(Beside { cpu_micros: 4.0, failed_share: 0.01 }),
            at_rest: Some(Connections { count: 4_000, most: 262_144, mib: Some(12.0) }),
            connections: Some(Connections { count: 140_000, most: 262_144, mib: Some(31.5) }),
            drops: Some([("snat-ports-exhausted".to_owned(), 7)].into()),
        }
    }

    #[test]
    fn it_is_compared_with_direct() {
        let flood = flood(Path::OutsideRemote, Contender::ShuntAll);
        assert_eq!((flood.rate(), flood.to_direct()), (200_000.0, Some(1.5)));
        assert!(flood.failed_beyond().is_some_and(|share| (share - 0.02).abs() < 1e-9));
        let alone = Flood { beside: None, ..flood };
        assert_eq!((alone.to_direct(), alone.failed_beyond()), (None, None));
    }
}

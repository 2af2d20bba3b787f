//! One flood on one path: who floods, who comes meanwhile, who was there before.

use std::{
    net::{SocketAddr, SocketAddrV4},
    panic::resume_unwind,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    Options,
    network::{self, Counted},
    results::Flood,
};
use crate::bench::{
    contender::Contender,
    ends::{self, Ends, Flooded, Hold, Newcomers, Open, Workload},
    field::Field,
    load::{connections::connections, grown},
    proc,
    target::Path,
};

/// Honest clients that come in a second.
const NEWCOMERS: u32 = 50;
/// The same without a flood, before it.
const CALM: Duration = Duration::from_secs(5);
/// Before a flood ends, established connections are asked, which may take five seconds.
const LAST: Duration = Duration::from_secs(6);
/// Between a flood and what comes after it.
const REST: Duration = Duration::from_secs(3);
const SEED: u64 = 0x5348_554e_5421;

/// Clients in processes of their own, so that one does not wait for another.
pub(super) struct Siege<'a> {
    field: &'a Field,
    path: Path,
    cpus: &'a [usize],
    flooder: Ends,
    newcomers: Ends,
    established: Ends,
}

/// While something lasts.
struct Span {
    newcomers: Newcomers,
    flooded: Flooded,
    /// Processor time of the machine, without that of others.
    busy: Duration,
    /// Processor time of others.
    others: Duration,
    seconds: f64,
    counted: Counted,
}

impl<'a> Siege<'a> {
    pub(super) fn new(field: &'a Field, path: Path, cpus: &'a [usize]) -> Result<Self> {
        let start = || Ends::start(cpus, None);
        Ok(Self { field, path, cpus, flooder: start()?, newcomers: start()?, established: start()? })
    }

    /// With so many SYNs per second, if they can be sent.
    pub(super) fn measure(mut self, rate: u64, options: &Options) -> Result<Flood> {
        let (netns, to) = (self.netns(), self.to());
        self.established.hold(Hold { netns, to, count: options.established })?;
        let asked = self.established.ask_held()?;
        ensure!(asked.broken == 0, "{} connections do not answer before the flood", asked.broken);
        let (at_rest, drops) = (connections(self.field)?, self.field.drops()?);
        let calm = self.span(CALM, None)?;
        let mut last = None;
        let span = self.span(Duration::from_secs(options.seconds.into()), Some((rate, &mut last)))?;
        let connections = connections(self.field)?;
        let dropped = self.field.drops()?.map(|after| grown(&drops.unwrap_or_default(), after));
        thread::sleep(REST);
        let after = self.established.ask_held()?;
        let flood = Flood {
            path: self.path,
            contender: self.field.contender(),
            wished: rate,
            seconds: span.flooded.nanoseconds as f64 / 1e9,
            sent: span.flooded.sent,
            arrived: beyond(
                span.counted.arrived as f64,
                calm.counted.arrived as f64,
                span.seconds / calm.seconds,
            ) as u64,
            no_room: span.counted.no_room,
            established: asked.answered,
            broken_meanwhile: last.context("a flood without an end")?,
            broken: after.broken,
            before: calm.newcomers,
            meanwhile: span.newcomers,
            cpu_micros: cpu_micros(&calm, &span),
            others: span.others.as_secs_f64() / span.seconds,
            beside: None,
            at_rest,
            connections,
            drops: dropped,
        };
        ensure_arrival(&flood)?;
        Ok(flood)
    }

    /// Newcomers for so long, with a flood or without; `broken` gets how many established connections do
    /// not answer at the end of it.
    fn span(&mut self, length: Duration, flood: Option<(u64, &mut Option<u64>)>) -> Result<Span> {
        let nanoseconds = length.as_nanos() as u64;
        let open = Open { netns: self.netns(), to: self.to(), per_second: NEWCOMERS, nanoseconds };
        let (rate, broken) = flood.unzip();
        let flood = rate.map(|rate| self.flood(rate, nanoseconds)).transpose()?;
        let Self { field, flooder, newcomers, established, .. } = self;
        let (begin, busy, others) = (Instant::now(), proc::busy()?, proc::others()?);
        let counted = Counted::now(field)?;
        thread::scope(|scope| {
            let newcomers = scope.spawn(|| newcomers.open(open));
            let flooded = scope.spawn(|| flood.map(|flood| flooder.flood(flood)).transpose());
            if let Some(broken) = broken {
                thread::sleep(length.saturating_sub(LAST));
                *broken = Some(established.ask_held()?.broken);
            }
            let flooded = joined(flooded)?.unwrap_or_default();
            thread::sleep(length.saturating_sub(begin.elapsed()));
            let (seconds, others) = (begin.elapsed().as_secs_f64(), proc::others()?.saturating_sub(others));
            let busy = proc::busy()?.saturating_sub(busy).saturating_sub(others);
            let counted = Counted::now(field)?.since(counted);
            Ok(Span { newcomers: joined(newcomers)?, flooded, busy, others, seconds, counted })
        })
    }

    fn flood(&self, rate: u64, nanoseconds: u64) -> Result<ends::Flood> {
        let v4 = |to| match to {
            SocketAddr::V4(to) => Ok(to),
            SocketAddr::V6(to) => anyhow::bail!("{to} is not IPv4"),
        };
        let to = self.to().into_iter().map(v4).collect::<Result<Vec<SocketAddrV4>>>()?;
        let cpus = self.cpus.to_vec();
        Ok(ends::Flood {
            netns: self.netns(),
            to,
            prefix: network::FORGED,
            cpus,
            rate,
            nanoseconds,
            seed: SEED,
        })
    }

    /// The outside client's.
    fn netns(&self) -> PathBuf {
        self.field.cluster().client.netns.path()
    }

    fn to(&self) -> Vec<SocketAddr> {
        self.path.destinations(self.field.contender(), Workload::TcpConnect, self.field.cluster())
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// What is more than it would have been in `times` of what was before.
fn beyond(now: f64, before: f64, times: f64) -> f64 {
    (now - before * times).max(0.0)
}

/// Of all CPUs for each SYN, beyond what the machine does without a flood.
fn cpu_micros(calm: &Span, span: &Span) -> f64 {
    let busy = beyond(span.busy.as_secs_f64(), calm.busy.as_secs_f64(), span.seconds / calm.seconds);
    busy * 1e6 / span.flooded.sent.max(1) as f64
}

/// Without a proxy there is nobody who might drop what does not arrive, but a mistake in the network.
fn ensure_arrival(flood: &Flood) -> Result<()> {
    let Flood { contender, sent, arrived, .. } = flood;
    let is_lost = *contender == Contender::Direct && arrived * 2 < *sent;
    ensure!(
        !is_lost,
        "{arrived} of {sent} SYNs have arrived at the backends without a proxy: the network drops them"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_does_anyway_does_not_count() {
        let span = |busy, seconds, sent| Span {
            newcomers: Newcomers::default(),
            flooded: Flooded { sent, ..Flooded::default() },
            busy: Duration::from_secs_f64(busy),
            seconds,
            others: Duration::ZERO,
            counted: Counted::default(),
        };
        let (calm, flood) = (span(0.5, 5.0, 0), span(14.0, 60.0, 1_000_000));
        assert!((cpu_micros(&calm, &flood) - 8.0).abs() < 1e-9);
        assert_eq!(cpu_micros(&flood, &calm), 0.0);
    }
}

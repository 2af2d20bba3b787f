//! From an API write to the first packet that goes where it says.

use super::{
    objects::Asked,
    prober::now,
    results::{Distribution, Samples},
    world::World,
};
use crate::bench::populate::objects;
use anyhow::Result;
use std::{
    thread,
    time::{Duration, Instant},
};

/// Before each change, so that each comes alone: longer than a proxy holds back what follows
/// closely. What follows closely is measured as churn.
const PAUSE: Duration = Duration::from_millis(1100);

/// How many samples, and how long for each and for all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) samples: u32,
    pub(super) patience: Duration,
    pub(super) deadline: Instant,
}

impl Effort {
    /// How long the next one may take; nothing if there is no time.
    fn next(&self) -> Option<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        (left > PAUSE).then(|| left.min(self.patience))
    }
}

/// When a write was sent, when it was acknowledged, when it was in force.
struct Sample {
    sent: Duration,
    acknowledged: Duration,
    served: Option<Duration>,
}

/// Creates services with one endpoint each, one after the other, and deletes them.
pub(super) fn create(world: &mut World, effort: &Effort) -> Result<(Option<Samples>, Option<String>)> {
    let backend = world.backends()[0].v4;
    let number = |place: u32| u16::try_from(place).unwrap_or(u16::MAX);
    let all = take(world, effort, |world, place, limit| {
        let asked = Asked::sample(number(place));
        world.ask(asked.frontend(), None, limit)?;
        let written = world.control_plane.with_client(async |client| {
            objects::create(&client, &asked.service()).await?;
            let sent = now()?;
            objects::create(&client, &asked.slice(backend)).await?;
            Ok((sent, now()?))
        });
        finish(world, written)
    });
    world.control_plane.with_client(async |client| {
        for place in 0..effort.samples {
            let asked = Asked::sample(number(place));
            objects::delete(&client, &asked.slice(backend)).await?;
            objects::delete(&client, &asked.service()).await?;
        }
        Ok(())
    })?;
    all
}

/// Moves the target from one backend to the other and back. It ends where it began.
pub(super) fn change(world: &mut World, effort: &Effort) -> Result<(Option<Samples>, Option<String>)> {
    let all = take(world, effort, |world, place, limit| move_target(world, 1 - place as usize % 2, limit));
    let slice = Asked::target().slice(world.backends()[0].v4);
    world.control_plane.with_client(async |client| objects::patch_endpoints(&client, &slice).await)?;
    all
}

/// Moves the target to one of the backends.
fn move_target(world: &mut World, backend: usize, limit: Duration) -> Result<Sample> {
    let target = Asked::target();
    let (name, address) = (world.backends()[backend].name.clone(), world.backends()[backend].v4);
    world.ask(target.frontend(), Some(&name), limit)?;
    let written = world.control_plane.with_client(async |client| {
        // The connection is made before the clock is read.
        client.apiserver_version().await?;
        let sent = now()?;
        objects::patch_endpoints(&client, &target.slice(address)).await?;
        Ok((sent, now()?))
    });
    finish(world, written)
}

fn finish(world: &mut World, written: Result<(Duration, Duration)>) -> Result<Sample> {
    // Also after a failed write: the prober must be free for what follows.
    let served = world.prober.answered()?;
    let (sent, acknowledged) = written?;
    Ok(Sample { sent, acknowledged, served })
}

/// Takes samples until there are enough, one is not in force in time, or time is over. The
/// second value says why there are not enough.
fn take(
    world: &mut World,
    effort: &Effort,
    mut one: impl FnMut(&mut World, u32, Duration) -> Result<Sample>,
) -> Result<(Option<Samples>, Option<String>)> {
    let (mut since_sent, mut since_acknowledged) = (Vec::new(), Vec::new());
    let mut lack = None;
    for place in 0..effort.samples {
        let Some(limit) = effort.next() else {
            lack = Some(format!("{place} of {} samples: the time was over", effort.samples));
            break;
        };
        thread::sleep(PAUSE);
        let sample = one(world, place, limit)?;
        let Some(served) = sample.served else {
            lack = Some(format!("sample {place} was not in force after {:.0} s", limit.as_secs_f64()));
            break;
        };
        since_sent.push(milliseconds(sample.sent, served));
        since_acknowledged.push(milliseconds(sample.acknowledged, served));
    }
    let taken = since_sent.len() as u32;
    let both = Distribution::of(since_sent).zip(Distribution::of(since_acknowledged));
    Ok((both.map(|(since_sent, since_acknowledged)| Samples { taken, since_sent, since_acknowledged }), lack))
}

/// Negative if a proxy was faster than the acknowledgement.
fn milliseconds(from: Duration, to: Duration) -> f64 {
    (to.as_secs_f64() - from.as_secs_f64()) * 1e3
}

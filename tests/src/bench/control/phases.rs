//! What is measured of one contender with one number of services, in its order.

use super::{
    contender::Contender,
    delivery,
    objects::Asked,
    prober::now,
    results::{ColdStart, Restart, Row, Samples},
    samples::{self, Effort},
    stretch,
    world::World,
};
use crate::{bench::populate::objects, control_plane::SharedControlPlane};
use anyhow::Result;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A proxy that has just started may have more to do; it is waited for so long at most.
const REST: Duration = Duration::from_secs(60);

/// What is to be measured.
pub(super) struct Measurement {
    pub(super) services: u32,
    pub(super) samples: u32,
    pub(super) length: Duration,
    pub(super) patience: Duration,
    pub(super) deadline: Instant,
}

impl Measurement {
    /// Measures; says meanwhile what it found.
    pub(super) fn row(&self, control_plane: &Arc<SharedControlPlane>, contender: Contender) -> Result<Row> {
        let mut row = Row::new(self.services, contender);
        let mut world = World::build(control_plane, contender)?;
        self.delivery(&world, &mut row);
        match self.cold_start(&mut world)? {
            Some(cold_start) => {
                self.say(&row, &format!("served after {:.2} s", cold_start.served_seconds));
                row.cold_start = Some(cold_start);
                self.at_work(&mut world, &mut row)?;
            }
            None => {
                let note = format!("not ready after {:.0} s", self.limit().as_secs_f64());
                self.say(&row, &format!("{note}:\n{}", world.last_words()));
                row.notes.push(note);
            }
        }
        Ok(row)
    }

    fn delivery(&self, world: &World, row: &mut Row) {
        let (media_type, limit) = (row.contender.media_type(), self.limit());
        let measured = world
            .shown
            .with_client(world.node(), async |client| delivery::measure(&client, media_type, limit).await);
        match measured {
            Ok(delivery) => {
                self.say(row, &format!("lists of {:.1} MiB in {:.2} s", delivery.mib, delivery.seconds));
                row.delivery = Some(delivery);
            }
            Err(error) => row.notes.push(format!("lists: {error:#}")),
        }
    }

    fn say(&self, row: &Row, what: &str) {
        println!("{} services, {}: {what}", self.services, row.contender);
    }

    /// How long the next wait may be.
    fn limit(&self) -> Duration {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.patience.min(left.max(Duration::from_secs(1)))
    }

    fn cold_start(&self, world: &mut World) -> Result<Option<ColdStart>> {
        let limit = self.limit();
        let begin = world.start()?;
        world.ask(Asked::target().frontend(), None, limit)?;
        let Some(served) = world.prober.answered()? else { return Ok(None) };
        let in_sync = world.in_sync(begin, limit)?;
        if in_sync.is_none() && world.running()?.tells() {
            return Ok(None);
        }
        let usage = &world.running()?.usage;
        Ok(Some(ColdStart {
            served_seconds: served.saturating_sub(begin).as_secs_f64(),
            in_sync_seconds: in_sync.map(|(seconds, _)| seconds),
            rows_written: in_sync.map(|(_, rows)| rows),
            cpu_seconds: usage.cpu()?.as_secs_f64(),
            peak_rss_mib: usage.peak_mib()?,
            mapped_mib: usage.mapped_mib()?,
            children_rss_mib: usage.children_mib(),
            maps_mib: world.running()?.tells().then(|| usage.maps_mib()).transpose()?,
        }))
    }

    /// Everything after the start.
    fn at_work(&self, world: &mut World, row: &mut Row) -> Result<()> {
        world.rest(REST)?;
        if self.is_in_time(row, "idle stretch, churn") {
            let idle = stretch::idle(world, self.length)?;
            self.say(row, &format!("idle {:.2} % of a core, p99 {:.0} µs", idle.cpu_percent, idle.p99_us));
            row.idle = Some(idle);
            let churn = stretch::churn(world, self.services, self.length)?;
            let used = &churn.stretch;
            self.say(
                row,
                &format!(
                    "churn of {:.1}/s {:.1} % of a core, p99 {:.0} µs, {} lost",
                    churn.changes_per_second, used.cpu_percent, used.p99_us, used.lost
                ),
            );
            row.churn = Some(churn);
            world.rest(REST)?;
        }
        let effort = Effort { samples: self.samples, patience: self.patience, deadline: self.deadline };
        if self.is_in_time(row, "restart") {
            self.restart(world, row)?;
        }
        if self.is_in_time(row, "endpoint change") {
            let (change, lack) = samples::change(world, &effort)?;
            self.note(row, "endpoint change", change.as_ref(), lack);
            row.change = change;
        }
        if self.is_in_time(row, "create") {
            let (create, lack) = samples::create(world, &effort)?;
            self.note(row, "create", create.as_ref(), lack);
            row.create = create;
        }
        Ok(())
    }

    fn is_in_time(&self, row: &mut Row, what: &str) -> bool {
        let is = Instant::now() + 2 * self.length < self.deadline;
        if !is {
            row.notes.push(format!("{what}: not measured, the time was over"));
        }
        is
    }

    fn note(&self, row: &mut Row, what: &str, samples: Option<&Samples>, lack: Option<String>) {
        if let Some(samples) = samples {
            let Samples { taken, since_sent, since_acknowledged } = samples;
            self.say(
                row,
                &format!(
                    "{what}: {taken} times p50 {:.1} ms, p99 {:.1} ms; from the acknowledgement {:.1}, {:.1}",
                    since_sent.p50_ms,
                    since_sent.p99_ms,
                    since_acknowledged.p50_ms,
                    since_acknowledged.p99_ms
                ),
            );
        }
        if let Some(lack) = lack {
            self.say(row, &format!("{what}: {lack}"));
            row.notes.push(format!("{what}: {lack}"));
        }
    }

    /// Once without a change, under requests, and once with one that was made meanwhile.
    fn restart(&self, world: &mut World, row: &mut Row) -> Result<()> {
        let (netns, to) = (&world.cluster.nodes[0].pods[1].netns, Asked::target().frontend());
        world.prober.stream(netns, to)?;
        let again = self.start_again(world);
        let streamed = world.prober.end_stream()?;
        let in_sync = again?;
        let follows = self.follows(world)?;
        let restart = Restart {
            in_sync_seconds: in_sync.map(|(seconds, _)| seconds),
            rows_written: in_sync.map(|(_, rows)| rows),
            follows_seconds: follows,
            answered: streamed.latencies_us.len() as u64,
            lost: streamed.lost,
        };
        self.say(row, &format!("restart: {restart:?}"));
        if follows.is_none() {
            row.notes.push("restart: what changed meanwhile was not in force in time".into());
        }
        row.restart = Some(restart);
        Ok(())
    }

    fn start_again(&self, world: &mut World) -> Result<Option<(f64, u64)>> {
        world.stop()?;
        let begin = world.start()?;
        let in_sync = world.in_sync(begin, self.limit())?;
        world.rest(REST)?;
        Ok(in_sync)
    }

    fn follows(&self, world: &mut World) -> Result<Option<f64>> {
        world.stop()?;
        let (name, address) = (world.backends()[1].name.clone(), world.backends()[1].v4);
        let target = Asked::target();
        world
            .control_plane
            .with_client(async |client| objects::patch_endpoints(&client, &target.slice(address)).await)?;
        let begin = now()?;
        world.start()?;
        world.ask(target.frontend(), Some(&name), self.limit())?;
        let served = world.prober.answered()?;
        let first = target.slice(world.backends()[0].v4);
        world.rest(REST)?;
        // Where the samples begin.
        world.control_plane.with_client(async |client| objects::patch_endpoints(&client, &first).await)?;
        world.ask(target.frontend(), Some(&world.backends()[0].name.clone()), self.limit())?;
        world.prober.answered()?;
        Ok(served.map(|served| served.saturating_sub(begin).as_secs_f64()))
    }
}

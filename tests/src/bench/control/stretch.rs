//! Requests to the target for a while: with nothing else to do for the proxy, or under churn.

use super::{
    objects::Asked,
    results::{Churn, Stretch},
    world::World,
};
use crate::bench::{
    populate::{ENDPOINTS, endpoint, filler_slice, objects},
    statistics::percentile,
};
use anyhow::{Result, anyhow};
use serde_json::json;
use std::{
    thread,
    time::{Duration, Instant},
};

/// Changes in a second.
const RATE: u32 = 20;
/// Endpoints that fillers get under churn: no filler has one of them before, and each contender
/// brings others, for a change to what there is already is none.
const FIRST_CHANGED: u32 = u32::from_be_bytes([10, 189, 0, 0]);
const CHANGED: u32 = 1 << 16;
/// From one filler to the next that is changed: a prime, so that each has its turn.
const STRIDE: u32 = 7919;

/// Requests while nothing changes.
pub(super) fn idle(world: &mut World, length: Duration) -> Result<Stretch> {
    let (stretch, ()) = measure(world, |_| {
        thread::sleep(length);
        Ok(())
    })?;
    Ok(stretch)
}

/// Requests while endpoints of fillers change.
pub(super) fn churn(world: &mut World, services: u32, length: Duration) -> Result<Churn> {
    let (stretch, changes) = measure(world, |world| change_fillers(world, services, length))?;
    Ok(Churn { changes_per_second: f64::from(changes) / stretch.seconds, stretch })
}

fn measure<T>(world: &mut World, meanwhile: impl FnOnce(&World) -> Result<T>) -> Result<(Stretch, T)> {
    let (netns, to) = (&world.cluster.nodes[0].pods[1].netns, Asked::target().frontend());
    world.prober.stream(netns, to)?;
    let (begin, before) = (Instant::now(), world.running()?.usage.cpu()?);
    let done = meanwhile(world);
    let (seconds, used) = (begin.elapsed().as_secs_f64(), world.running()?.usage.cpu()? - before);
    let mut streamed = world.prober.end_stream()?;
    streamed.latencies_us.sort_by(f64::total_cmp);
    let [p50_us, p99_us] = [0.5, 0.99].map(|share| percentile(&streamed.latencies_us, share));
    let stretch = Stretch {
        seconds,
        cpu_percent: 100.0 * used.as_secs_f64() / seconds,
        // Nothing at all was answered: `answered` says so.
        p50_us: if p50_us.is_nan() { 0.0 } else { p50_us },
        p99_us: if p99_us.is_nan() { 0.0 } else { p99_us },
        answered: streamed.latencies_us.len() as u64,
        lost: streamed.lost,
    };
    Ok((stretch, done?))
}

/// At its rate, as far as the API server goes along; says how many changes it were.
fn change_fillers(world: &World, services: u32, length: Duration) -> Result<u32> {
    let first = FIRST_CHANGED + world.contender as u32 * CHANGED;
    let work = || {
        world.control_plane.with_client(async |client| {
            let begin = Instant::now();
            let mut changes = 0;
            while begin.elapsed() < length {
                let number = changes * STRIDE % services;
                let mut slice = filler_slice(number);
                slice["endpoints"][ENDPOINTS as usize - 1] =
                    json!(endpoint(first + changes % CHANGED, changes));
                objects::patch_endpoints(&client, &slice).await?;
                changes += 1;
                let due = Duration::from_secs(1) * changes / RATE;
                tokio::time::sleep(due.saturating_sub(begin.elapsed())).await;
            }
            Ok(changes)
        })
    };
    thread::scope(|scope| scope.spawn(work).join()).map_err(|_| anyhow!("the churn panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn changed_endpoints_are_no_fillers() {
        let last = &filler_slice(49_999)["endpoints"][9]["addresses"][0];
        let last: Option<Ipv4Addr> = last.as_str().and_then(|text| text.parse().ok());
        assert!(last.is_some_and(|last| last.to_bits() < FIRST_CHANGED));
    }
}

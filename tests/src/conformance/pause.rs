//! Pauses before connections, without waiting where it can be helped: of earlier connections a new
//! one knows only by its client's affinity, so the rows of affinity are made older instead.

use super::scene::Scene;
use crate::probe::{Dial, Outcome, Worker};
use anyhow::{Context, Result};
use aya::{
    Pod,
    maps::{HashMap, Map, MapData},
};
use proxy_common::{
    addr::{Ip4, Ip6},
    maps::affinity::{Affinity, AffinityKey},
};
use std::{path::Path, thread, time::Duration};

/// By so much more each pause is longer than the one before. Where a client goes whose time is over follows from
/// when it came last. The programs know that to a timer tick, in which several of these connections fall; real
/// pauses would put them apart.
const FRACTION: Duration = Duration::from_micros(4_217);

/// A row is written only if it is still there.
const EXIST: u64 = 2;

/// Makes the attempts that `dial` asks for, each after a pause.
pub(super) fn dial(scene: &Scene, worker: &Worker, dial: &Dial, pause: Duration) -> Result<Vec<Outcome>> {
    if dial.source_port.is_some() {
        // The client goes on with its connection, which no row stands for alone.
        return worker.dial(&Dial { gap_ms: pause.as_millis() as u64, ..dial.clone() });
    }
    let mut outcomes = Vec::new();
    for number in 0..dial.count {
        let aged = age(scene, pause + FRACTION * number).context("make the rows of affinity older")?;
        // The first may find that nothing is remembered yet; later, something else must be meant.
        if aged == 0 && number > 0 {
            thread::sleep(pause);
        }
        outcomes.extend(worker.dial(&Dial { count: 1, ..dial.clone() })?);
    }
    Ok(outcomes)
}

/// Has every client opened its last connection so much earlier; says how many clients that is.
fn age(scene: &Scene, by: Duration) -> Result<usize> {
    let maps = scene.agent.pins().join("current/maps");
    Ok(age_rows::<AffinityKey<Ip4>>(&maps.join("affinity_v4"), by)?
        + age_rows::<AffinityKey<Ip6>>(&maps.join("affinity_v6"), by)?)
}

fn age_rows<K: Pod>(pin: &Path, by: Duration) -> Result<usize> {
    let data = MapData::from_pin(pin).with_context(|| format!("open {}", pin.display()))?;
    let mut map: HashMap<_, K, Affinity> = HashMap::try_from(Map::from_map_data(data)?)?;
    let rows = map.iter().collect::<Result<Vec<_>, _>>()?;
    for (key, row) in &rows {
        // As the programs subtract: the machine may not have been up for so long.
        let last_used = row.last_used.wrapping_sub(by.as_nanos() as u64);
        map.insert(key, Affinity { last_used, ..*row }, EXIST)?;
    }
    Ok(rows.len())
}

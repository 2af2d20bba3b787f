//! One generation of maps and programs hands over to the next: another size, another layout, an
//! older version again. Connections go on, and nothing is lost in between.

use crate::world::{VICTIM, configured, lossless, paths};
use anyhow::{Context, Result, ensure};
use aya::maps::{HashMap, Map, MapData, PerCpuHashMap};
use nix::sys::signal::Signal;
use proxy_common::maps::{LAYOUT_VERSION, counters::CounterKey};
use serde_json::{Value, json};
use std::{fs, path::PathBuf, thread, time::Duration};
use tests::{
    agent::{Agent, SocketLb},
    load::{Kind, Load},
    manifests,
    process::binary,
    skip::skipped,
    topology::cluster::Cluster,
};

/// How long an agent lives that is killed while it takes over, in ms: from before it has made a
/// map to after it has retired the earlier generation.
const LIVES: [u64; 10] = [50, 250, 400, 500, 600, 700, 850, 1000, 1300, 1800];

/// `LAYOUT_VERSION` of the next version, by `tests/next-layout.toml`.
const NEXT_LAYOUT: u32 = 1000;

/// Ways to be attached: links and socket hooks, links alone, filters.
fn ways() -> [Value; 3] {
    let mut clsact = Agent::small(SocketLb::Off);
    clsact["attach"] = "clsact".into();
    [Agent::small(SocketLb::All), Agent::small(SocketLb::Off), clsact]
}

/// The same with maps that are twice as large, or half.
fn resized(shunt: &Value, factor: f64) -> Value {
    let mut shunt = shunt.clone();
    if let Some(maps) = shunt["maps"].as_object_mut() {
        for capacity in maps.values_mut() {
            *capacity = json!((capacity.as_f64().unwrap() * factor) as u64);
        }
    }
    shunt
}

/// The only generation there is, as `current` names it.
fn only_generation(cluster: &Cluster) -> Result<PathBuf> {
    let pins = cluster.nodes[VICTIM].agent.pins();
    let current = fs::read_link(pins.join("current")).context("current")?;
    let mut names: Vec<_> = fs::read_dir(&pins)?.map(|e| Ok(e?.file_name())).collect::<Result<_>>()?;
    names.sort();
    ensure!(names == ["current".into(), current.clone().into_os_string()], "left over: {names:?}");
    Ok(current)
}

fn restart(cluster: &mut Cluster, signal: Signal) -> Result<()> {
    let node = &mut cluster.nodes[VICTIM];
    if node.agent.is_running() {
        node.agent.kill(signal)?;
    }
    node.agent.start(&node.host.netns)?;
    node.agent.wait_in_sync()
}

#[test]
fn another_size_takes_over_without_a_loss() -> Result<()> {
    for shunt in ways() {
        let mut cluster = configured(&shunt)?;
        let mut load = Load::start(&cluster, &paths()?)?;
        for (factor, what) in [(2.0, "larger maps"), (1.0, "smaller ones again")] {
            let before = only_generation(&cluster)?;
            cluster.nodes[VICTIM].agent.configure(&json!({}), &resized(&shunt, factor))?;
            restart(&mut cluster, Signal::SIGTERM)?;
            ensure!(only_generation(&cluster)? != before, "{what}: the generation is the same");
            load.checkpoint(what)?;
        }
        let report = lossless(load, &format!("another size, {shunt}"))?;
        assert!(report.of(Kind::Connections).ok > 100, "too little was tried:\n{report}");
    }
    Ok(())
}

#[test]
fn an_agent_that_is_killed_while_it_takes_over_loses_nothing() -> Result<()> {
    let shunt = Agent::small(SocketLb::All);
    let mut cluster = configured(&shunt)?;
    let mut load = Load::start(&cluster, &paths()?)?;
    cluster.nodes[VICTIM].agent.kill(Signal::SIGKILL)?;
    for (round, life) in LIVES.into_iter().enumerate() {
        let node = &mut cluster.nodes[VICTIM];
        node.agent.configure(&json!({}), &resized(&shunt, [2.0, 1.0][round % 2]))?;
        node.agent.start(&node.host.netns)?;
        thread::sleep(Duration::from_millis(life));
        node.agent.kill(Signal::SIGKILL)?;
        load.checkpoint(&format!("killed after {life} ms"))?;
    }
    restart(&mut cluster, Signal::SIGKILL)?;
    only_generation(&cluster)?;
    load.checkpoint("in sync at last")?;
    lossless(load, "killed while taking over").map(drop)
}

/// Another version with another layout of rows, this one again, and once more.
#[test]
fn another_layout_takes_over_without_a_loss() -> Result<()> {
    let Ok(next) = binary("shunt_next") else {
        skipped("there is no other version; `cargo xtask build-ebpf --next-layout` builds one");
        return Ok(());
    };
    for shunt in ways() {
        let mut cluster = configured(&shunt)?;
        let mut load = Load::start(&cluster, &paths()?)?;
        load.checkpoint("at first")?;
        for (program, layout, what) in [
            (Some(next.clone()), NEXT_LAYOUT, "the next layout"),
            (None, LAYOUT_VERSION, "back again"),
            (Some(next.clone()), NEXT_LAYOUT, "and forth"),
        ] {
            let before = opened_connections(&cluster)?;
            cluster.nodes[VICTIM].agent.run_program(program);
            restart(&mut cluster, Signal::SIGTERM)?;
            let generation = only_generation(&cluster)?;
            ensure!(generation.to_string_lossy().ends_with(&format!("-v{layout}")), "{generation:?}");
            let after = opened_connections(&cluster)?;
            ensure!(after >= before, "{before} connections had been opened, by {what} {after}");
            load.checkpoint(what)?;
        }
        let report = lossless(load, &format!("another layout, {shunt}"))?;
        assert!(report.of(Kind::Connections).ok > 100, "too little was tried:\n{report}");
    }
    Ok(())
}

/// What the programs have counted, whatever they count in.
fn opened_connections(cluster: &Cluster) -> Result<u64> {
    let maps = cluster.nodes[VICTIM].agent.pins().join("current/maps");
    let mut sum = 0;
    for name in ["opened_v4", "opened_v6"] {
        let map = Map::from_map_data(MapData::from_pin(maps.join(name))?)?;
        if let Map::PerCpuHashMap(_) = map {
            let map = PerCpuHashMap::<MapData, CounterKey, u64>::try_from(map)?;
            for row in map.iter() {
                sum += row?.1.iter().sum::<u64>();
            }
        } else {
            let map = HashMap::<MapData, CounterKey, u64>::try_from(map)?;
            for row in map.iter() {
                sum += row?.1;
            }
        }
    }
    Ok(sum)
}

/// Enough services to fill maps for as many as there were.
fn many_services(count: usize) -> Result<Vec<Value>> {
    let mut objects = manifests::two_nodes()?;
    objects.extend(manifests::fillers(0..count));
    Ok(objects)
}

#[test]
fn maps_grow_under_load() -> Result<()> {
    for mut shunt in ways() {
        shunt["maps"]["frontends"] = 256.into();
        let mut cluster = configured(&shunt)?;
        let mut load = Load::start(&cluster, &paths()?)?;
        let before = only_generation(&cluster)?;
        let node = &mut cluster.nodes[VICTIM];
        // More than the map holds: what does not fit is written when it has grown.
        node.agent.write(&many_services(120)?)?;
        node.agent
            .wait_for("larger maps", |line| line.message() == "took over from an earlier generation")?;
        node.agent.wait_in_sync()?;
        ensure!(only_generation(&cluster)? != before, "the generation is the same");
        load.checkpoint("larger maps")?;
        lossless(load, &format!("growth, {shunt}"))?;
    }
    Ok(())
}

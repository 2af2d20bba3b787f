//! Maps whose free rows lie with the CPUs: each has room for what it is to hold, whatever CPUs that
//! comes by.

use crate::{
    bench::{BACKEND_PORT, Bench, SERVICE_PORT, plans},
    fragments::{PAYLOAD, addresses, fragments},
    frames::{Flow, SYN, frame},
};
use anyhow::{Context, Result};
use aya::{
    Pod,
    maps::{HashMap, Map, MapData, PerCpuHashMap, PerCpuValues},
    util::nr_cpus,
};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use proxy_common::{
    addr::Ip4,
    maps::{
        fragments::{self, HELD_CAPACITY, HeldFragment, HeldKey},
        held_ports::{self, HeldPorts, HeldPortsKey},
        netns_addresses::{self, Netns},
        service_drops::{self, ServiceDropKey},
    },
};
use proxy_userspace::{
    dataplane::{FamilyMaps as _, MapStore as _},
    kernel::PinnedMaps,
};
use tests::{netns::Namespace, skip::skipped};

/// The CPUs that this thread may run on, some at most.
pub(crate) fn numbers() -> Result<Vec<usize>> {
    let may_run = sched_getaffinity(Pid::from_raw(0))?;
    let numbers = (0..CpuSet::count()).filter(|number| may_run.is_set(*number).unwrap_or(false));
    Ok(numbers.take(8).collect())
}

/// Has this thread run on that CPU alone, from now on.
pub(crate) fn move_to(number: usize) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(number)?;
    sched_setaffinity(Pid::from_raw(0), &cpus).with_context(|| format!("cannot run on CPU {number}"))
}

/// Lets this thread run where it could before.
struct Free(CpuSet);

impl Drop for Free {
    fn drop(&mut self) {
        if let Err(error) = sched_setaffinity(Pid::from_raw(0), &self.0) {
            eprintln!("this thread stays on its CPU: {error}");
        }
    }
}

/// True where nothing can be told of several CPUs.
fn is_alone() -> Result<bool> {
    let is_alone = numbers()?.len() < 2;
    if is_alone {
        skipped("there is one CPU");
    }
    Ok(is_alone)
}

/// Does it for each of `rows` things: for one on every other CPU, then for those that are left on one.
fn share_out(rows: u32, mut each: impl FnMut(u32) -> Result<()>) -> Result<()> {
    let _free = Free(sched_getaffinity(Pid::from_raw(0))?);
    let cpus = numbers()?;
    let most = cpus.last().context("no CPU")?;
    for (row, cpu) in (0..).zip(&cpus[..cpus.len() - 1]) {
        move_to(*cpu)?;
        each(row)?;
    }
    move_to(*most)?;
    (cpus.len() as u32 - 1..rows).try_for_each(each)
}

#[test]
fn packets_in_fragments_are_known_whatever_cpus_they_come_by() -> Result<()> {
    if is_alone()? {
        return Ok(());
    }
    Namespace::create("packet")?.run(|| {
        let mut bench = Bench::new();
        for plan in plans() {
            let flow = Flow::udp((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
            let to_backend = Flow::udp(flow.src, (plan.backend, BACKEND_PORT));
            let id = |row: u32| row as u16;
            share_out(fragments::CAPACITY, |row| {
                bench.ingress(&fragments(flow, id(row), &PAYLOAD)[0]);
                Ok(())
            })?;
            let expected = addresses(&fragments(to_backend, 0, &PAYLOAD)[1]);
            let known = |row: &u32| {
                let run = bench.ingress(&fragments(flow, id(*row), &PAYLOAD)[1]);
                addresses(&run.packet) == expected
            };
            assert_eq!((0..fragments::CAPACITY).filter(known).count() as u32, fragments::CAPACITY);
        }
        Ok(())
    })
}

/// Whichever CPU a connection is opened on, and whichever refuses one.
#[test]
fn what_cpus_count_is_added_up() -> Result<()> {
    if is_alone()? {
        return Ok(());
    }
    const EACH: u16 = 5;
    let _free = Free(sched_getaffinity(Pid::from_raw(0))?);
    let cpus = numbers()?;
    let all = u64::from(EACH) * cpus.len() as u64;
    let mut bench = Bench::new();
    for (cpu, first) in cpus.into_iter().zip((40000..).step_by(EACH.into())) {
        move_to(cpu)?;
        for plan in plans() {
            for port in first..first + EACH {
                bench.enters(Flow::tcp((plan.pod, port), (plan.cluster_ip, SERVICE_PORT)), SYN);
                bench.ingress(&frame(Flow::tcp((plan.pod, port), (plan.empty_ip, SERVICE_PORT)), SYN));
            }
        }
    }
    assert_eq!(counts(&bench.maps.v4().opened()?), [all]);
    assert_eq!(counts(&bench.maps.v6().opened()?), [all]);
    assert_eq!(counts(&PinnedMaps::open(bench.pins.clone())?.service_drops()?), [2 * all]);
    Ok(())
}

fn counts<K>(rows: &[(K, u64)]) -> Vec<u64> {
    rows.iter().map(|(_, count)| *count).collect()
}

#[test]
fn rows_have_their_room_whatever_cpus_write_them() -> Result<()> {
    if is_alone()? {
        return Ok(());
    }
    let bench = Bench::new();
    // What each CPU counts, the kernel takes and shows for all at once.
    let cpus = nr_cpus().map_err(|(_, error)| error)?;
    let service = |row| ServiceDropKey { service: row, ..ServiceDropKey::default() };
    let mut refused =
        PerCpuHashMap::<MapData, ServiceDropKey, u64>::try_from(pinned(&bench, "service_drops")?)?;
    share_out(service_drops::CAPACITY, |row| {
        let counts = PerCpuValues::try_from(vec![1; cpus])?;
        Ok(refused.insert(service(row), counts, 0)?)
    })?;
    assert_eq!(refused.keys().count() as u32, service_drops::CAPACITY);
    let destination = |row: u32| HeldPortsKey { dst: row.to_be_bytes().into(), ..HeldPortsKey::default() };
    holds(&bench, "held_ports_v4", held_ports::CAPACITY, |row| {
        (destination(row) as HeldPortsKey<Ip4>, HeldPorts::default())
    })?;
    holds(&bench, "netns_addresses_v4", netns_addresses::CAPACITY, |row| {
        (Netns::from(row), Ip4::from(row.to_be_bytes()))
    })?;
    holds(&bench, "held_fragments", HELD_CAPACITY, |row| {
        let mut key = [0_u8; size_of::<HeldKey>()];
        key[..4].copy_from_slice(&row.to_ne_bytes());
        (key, [0_u8; size_of::<HeldFragment>()])
    })
}

fn pinned(bench: &Bench, name: &str) -> Result<Map> {
    Ok(Map::from_map_data(MapData::from_pin(bench.pins.map(name))?)?)
}

fn holds<K: Pod, V: Pod>(bench: &Bench, name: &str, rows: u32, row: impl Fn(u32) -> (K, V)) -> Result<()> {
    let mut map = HashMap::<MapData, K, V>::try_from(pinned(bench, name)?)?;
    share_out(rows, |number| {
        let (key, value) = row(number);
        map.insert(key, value, 0).with_context(|| format!("row {number} of {name}"))
    })?;
    assert_eq!(map.keys().count() as u32, rows, "{name}");
    Ok(())
}

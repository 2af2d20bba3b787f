//! What it costs to sweep a table of many connections, where nobody is over and where all are, beside a read of all
//! rows into a table of the agent's own. `cargo xtask bench sweep` runs it.

#[path = "../tests/packet/bench.rs"]
#[allow(dead_code, reason = "shared with the packet tests, which use the rest")]
mod bench;
#[path = "../tests/packet/frames.rs"]
#[allow(dead_code, reason = "shared with the packet tests, which use the rest")]
mod frames;

use std::{collections::HashMap, hash::Hash, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use nix::time::{ClockId, clock_gettime};
use proxy_common::{
    Addr, Ip4, Ip6, Tuple,
    maps::{
        conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, flags},
        stale_ways::Way,
    },
    packet::headers::tcp_flags::{ACK, SYN},
    proto,
};
use proxy_userspace::{
    clock::monotonic_nanos,
    dataplane::{FamilyMaps, MapStore, Survey, Timeouts},
};

use bench::Bench;

/// Rows of a masqueraded connection.
const ROWS: u32 = 4;
/// Rows written at once.
const BATCH: u32 = 16_384;
const DAYS: u64 = 2 * 24 * 60 * 60 * 1_000_000_000;

/// Measures sweeps of the connections of one node.
#[derive(Parser)]
#[command(name = "cargo xtask bench sweep", bin_name = "cargo xtask bench sweep")]
struct Arguments {
    /// Rows of the table, of each family; a connection has four
    #[arg(long, default_value_t = 1_000_000)]
    rows: u32,
    /// How often a sweep is measured that removes nothing; results are medians
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let Arguments { rows, rounds, .. } = Arguments::parse();
    let connections = rows / ROWS;
    println!(
        "{} rows of {connections} masqueraded TCP connections, medians of {rounds} rounds\n",
        connections * ROWS
    );
    println!("{:<6} {:<34} {:>9} {:>9} {:>10}", "family", "what", "CPU ms", "ns/row", "peak KiB");
    let mut bench = Bench::with_conntrack(rows + rows / 4);
    fill(bench.maps.v4(), connections, |number: u32| Ip4::from(number.to_be_bytes()))?;
    measure("IPv4", connections, rounds, &mut bench)?;
    fill(bench.maps.v6(), connections, |number: u32| {
        let mut octets = [0xfd; 16];
        octets[12..].copy_from_slice(&number.to_be_bytes());
        Ip6::from(octets)
    })?;
    measure("IPv6", connections, rounds, &mut bench)
}

/// Measures what `bench` holds, which is of one family, and leaves nothing of it.
fn measure(family: &str, connections: u32, rounds: u32, bench: &mut Bench) -> Result<()> {
    let now = monotonic_nanos()?;
    let rows = connections * ROWS;
    let copied = median(rounds, || cost(|| copy(&mut bench.maps, rows)))?;
    let swept = median(rounds, || cost(|| sweep(bench, now, 0)))?;
    let cut = median(rounds, || cost(|| cut(&mut bench.maps)))?;
    let removed = cost(|| sweep(bench, now + DAYS, connections))?;
    for _ in 0..3 {
        Survey::take(&mut bench.maps, now + DAYS, &Timeouts::default())?;
    }
    copy(&mut bench.maps, 0)?;
    for (what, cost) in [
        ("read all rows", copied),
        ("sweep, no connection over", swept),
        ("cut, no connection goes that way", cut),
        ("sweep, all over", removed),
    ] {
        let nanos = cost.cpu.as_nanos() / u128::from(rows);
        println!(
            "{family:<6} {what:<34} {:>9.1} {nanos:>9} {:>10}",
            cost.cpu.as_secs_f64() * 1e3,
            cost.peak_kib
        );
    }
    Ok(())
}

/// What something has taken.
#[derive(Clone, Copy)]
struct Cost {
    /// CPU time of this thread, in the kernel and outside.
    cpu: Duration,
    /// Memory of the process beyond what it had.
    peak_kib: u64,
}

fn median(rounds: u32, mut measure: impl FnMut() -> Result<Cost>) -> Result<Cost> {
    let mut costs = (0..rounds).map(|_| measure()).collect::<Result<Vec<_>>>()?;
    costs.sort_by_key(|cost| cost.cpu);
    Ok(costs[costs.len() / 2])
}

fn cost(run: impl FnOnce() -> Result<()>) -> Result<Cost> {
    // Forgets the highest that memory has been (proc_pid_clear_refs(5)).
    std::fs::write("/proc/self/clear_refs", "5").context("cannot begin to measure memory")?;
    let (before, start) = (memory_kib("VmRSS:")?, thread_time()?);
    run()?;
    let (cpu, peak) = (thread_time()? - start, memory_kib("VmHWM:")?);
    Ok(Cost { cpu, peak_kib: peak.saturating_sub(before) })
}

fn thread_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

fn memory_kib(line: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let found =
        status.lines().find_map(|text| text.strip_prefix(line)?.split_whitespace().next()?.parse().ok());
    found.with_context(|| format!("no {line} in /proc/self/status"))
}

/// Sweeps, and expects that many connections to go. Where one goes, the kernel may pass over the next: a few are left to
/// the sweep that follows.
fn sweep(bench: &mut Bench, now: u64, expected: u32) -> Result<()> {
    let survey = Survey::take(&mut bench.maps, now, &Timeouts::default())?;
    let (expired, least) = (survey.expired(), expected - expected / 1000);
    ensure!(
        (least as usize..=expected as usize).contains(&expired),
        "{expired} of {expected} connections went"
    );
    Ok(())
}

/// Has flows removed that go a way which none goes.
fn cut(maps: &mut impl MapStore) -> Result<()> {
    let count = maps.v4().cut(&[Way::default()])? + maps.v6().cut(&[Way::default()])?;
    ensure!(count == 0, "{count} connections went");
    Ok(())
}

/// Reads all rows, as many as are expected.
fn copy(maps: &mut impl MapStore, expected: u32) -> Result<()> {
    let count = copy_family(maps.v4())? + copy_family(maps.v6())?;
    ensure!(count == expected as usize, "there are {count} of {expected} rows");
    Ok(())
}

fn copy_family<A: Addr + Hash>(maps: &impl FamilyMaps<A>) -> Result<usize> {
    let mut rows = HashMap::new();
    maps.each_conntrack(&mut |key, row| {
        rows.insert(*key, *row);
    })?;
    Ok(rows.len())
}

/// Enters connections of as many clients to ten backends.
fn fill<A: Addr>(maps: &mut impl FamilyMaps<A>, connections: u32, addr: impl Fn(u32) -> A) -> Result<()> {
    let now = monotonic_nanos()?;
    for first in (0..connections).step_by(BATCH as usize) {
        let last = connections.min(first + BATCH);
        let rows: Vec<_> = (first..last).flat_map(|number| connection(number, now, &addr)).collect();
        maps.put_conntrack(&rows)?;
    }
    Ok(())
}

fn connection<A: Addr>(number: u32, now: u64, addr: impl Fn(u32) -> A) -> [(CtKey<A>, CtEntry<A>); 4] {
    let [client, frontend, backend, node] =
        [0x0a00_0000 + number, 0xac1e_0001, 0x0a80_0000 + number % 10, 0xc0a8_0002];
    let tuple =
        |src, dst, sport, dport| Tuple { src: addr(src), dst: addr(dst), sport, dport, proto: proto::TCP };
    let client_port = 20_000 + (number % 40_000) as u16;
    let original = tuple(client, frontend, client_port, 80);
    let inside = tuple(client, backend, client_port, 8080);
    let wire = tuple(node, backend, 1024 + (number / 10 % 60_000) as u16, 8080);
    let row = |hook, from: Tuple<A>, to: Tuple<A>, role: Role| {
        let (service, backend) = (1, 1 + number % 10);
        let mut row = CtEntry { service, backend, last_seen: now, role: role.0, ..CtEntry::default() };
        row.set_target(&to);
        (row.flags, row.tcp_flags, row.packets, row.bytes) =
            (flags::SNAT | flags::LASTING, SYN | ACK, 10, 1000);
        match role {
            Role::DNAT | Role::REV_DNAT => row.name_masquerade(wire.src, wire.sport),
            _ => row.name_frontend(&original),
        }
        (CtKey::new(&from, hook), row)
    };
    [
        row(INGRESS, original, inside, Role::DNAT),
        row(EGRESS, inside, wire, Role::SNAT),
        row(INGRESS, wire.reversed(), inside.reversed(), Role::REV_SNAT),
        row(EGRESS, inside.reversed(), original.reversed(), Role::REV_DNAT),
    ]
}

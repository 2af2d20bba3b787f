//! CPUs that open connections of one client at the same time: they lead to one backend, whatever is known of the
//! client before, and whoever takes the packets.

use std::{collections::HashSet, net::IpAddr, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use nix::time::{ClockId, clock_gettime};
use proxy_common::maps::affinity::{Affinity, AffinityKey};
use proxy_userspace::kernel::KernelAddr;
use tests::{skip::skipped, together::Together};

use crate::{
    bench::{BACKEND_ID, BACKEND_PORT, CONTINUE, Plan, SERVICE_PORT, STICKY_BACKEND, plans, v4_of, v6_of},
    bpf::{self, Kind},
    connection::{NewFlow, forget},
    cpus,
    frames::{Flow, SYN, checked, frame},
    uplink::{Node, on_a_node},
};

/// Clients of a batch. The map of affinity has room for them all.
const CLIENTS: u8 = 100;
const BATCHES: usize = 3;
/// The service of the bench.
const SERVICE: u32 = 1;

/// Who takes the packets of a CPU.
#[derive(Clone, Copy, Debug)]
struct Taker {
    program: &'static str,
    kind: Kind,
    /// What it says of a packet that has its backend.
    verdict: i32,
}

const TC: Taker = Taker { program: "shunt_in", kind: Kind::Tc, verdict: CONTINUE };
const DRIVER: Taker = Taker { program: "shunt_xdp", kind: Kind::Xdp, verdict: 3 };

/// What is known of a client.
#[derive(Clone, Copy, Debug)]
enum Known {
    Nothing,
    /// Where it went too long ago.
    Outdated,
    /// A backend that takes no more connections.
    Gone,
}

impl Known {
    fn row(self) -> Result<Option<Affinity>> {
        let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE)?).as_nanos() as u64;
        let long = Duration::from_hours(1).as_nanos() as u64;
        Ok(match self {
            Self::Nothing => None,
            Self::Outdated => {
                Some(Affinity { last_used: now.wrapping_sub(long), backend: STICKY_BACKEND, slot: 0 })
            }
            Self::Gone => Some(Affinity { last_used: now, backend: BACKEND_ID, slot: BACKEND_ID }),
        })
    }
}

fn client(plan: &Plan, number: u8) -> IpAddr {
    match plan.outside {
        IpAddr::V4(_) => [203, 0, 114, number].into(),
        IpAddr::V6(_) => [0x2001, 0xdb8, 0xffff, 1, 0, 0, 0, u16::from(number)].into(),
    }
}

/// The backend's port of a connection of each client, for each CPU. `takers` take turns with the CPUs.
fn connect(
    node: &Node,
    (plan, new): (&Plan, NewFlow),
    takers: &[Taker],
    cpus: &[usize],
) -> Result<Vec<Vec<u16>>> {
    let together = &Together::new(cpus.len());
    let ifindex = node.uplink.ifindex;
    thread::scope(|scope| {
        let threads = cpus.iter().zip(takers.iter().cycle()).zip(40000..).map(|((cpu, taker), port)| {
            let program = node.bench.datapath.program(taker.program)?;
            let one = move |number| {
                let flow = new((client(plan, number), port), (plan.sticky_ip, SERVICE_PORT));
                let bytes = frame(flow, SYN);
                together.wait(usize::from(number))?;
                let run = bpf::run(program, taker.kind, &bytes, ifindex, 1)?;
                ensure!(run.verdict == taker.verdict, "{flow:?}: {taker:?} says {}", run.verdict);
                Ok(checked(&run.packet).dst.1)
            };
            Ok(scope.spawn(move || {
                cpus::move_to(*cpu)?;
                (0..CLIENTS).map(one).collect()
            }))
        });
        let threads: Vec<_> = threads.collect::<Result<_>>()?;
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// A batch of clients; returns the backends that they went to.
fn agree<A: KernelAddr>(
    node: &mut Node,
    (plan, new): (&Plan, NewFlow),
    addr: fn(IpAddr) -> A,
    known: Known,
    takers: &[Taker],
) -> Result<HashSet<u16>> {
    let name = if plan.pod.is_ipv4() { "affinity_v4" } else { "affinity_v6" };
    let map = Map::from_map_data(MapData::from_pin(node.bench.pins.map(name))?)?;
    let mut rows = HashMap::<MapData, AffinityKey<A>, Affinity>::try_from(map)?;
    let keys =
        (0..CLIENTS).map(|number| AffinityKey { client: addr(client(plan, number)), service: SERVICE });
    for (key, row) in keys.clone().zip(std::iter::repeat(known.row()?)) {
        row.map_or(Ok(()), |row| rows.insert(key, row, 0))?;
    }
    let by_cpu = connect(node, (plan, new), takers, &cpus::numbers()?)?;
    for (key, number) in keys.zip(0..) {
        let ports: Vec<_> = by_cpu.iter().map(|ports| ports[number]).collect();
        ensure!(ports.iter().all(|port| *port == ports[0]), "client {number} goes to {ports:?}");
        let row = rows.get(&key, 0).with_context(|| format!("client {number}"))?;
        let next = BACKEND_PORT + 1 + (row.backend - STICKY_BACKEND) as u16;
        ensure!(next == ports[0], "client {number} goes to {ports:?}, its next connection to {next}");
        rows.remove(&key)?;
    }
    forget(&mut node.bench, |_| true);
    Ok(by_cpu.into_iter().flatten().collect())
}

fn all_agree(known: Known) -> Result<()> {
    if cpus::numbers()?.len() < 2 {
        skipped("there is one CPU");
        return Ok(());
    }
    on_a_node(|node| {
        for plan in plans() {
            for takers in [&[TC][..], &[DRIVER], &[TC, DRIVER]] {
                for new in [Flow::tcp, Flow::udp] {
                    let mut seen = HashSet::new();
                    for _ in 0..BATCHES {
                        let connections = (&plan, new as NewFlow);
                        let ports = if plan.pod.is_ipv4() {
                            agree(node, connections, v4_of, known, takers)
                        } else {
                            agree(node, connections, v6_of, known, takers)
                        };
                        seen.extend(ports.with_context(|| format!("{known:?}, {takers:?}"))?);
                    }
                    ensure!(seen.len() == 8, "{CLIENTS} clients at {seen:?}");
                }
            }
        }
        Ok(())
    })
}

#[test]
fn first_connections_of_a_client_on_all_cpus_go_to_one_backend() -> Result<()> {
    all_agree(Known::Nothing)
}

#[test]
fn connections_of_a_client_whose_time_is_over_agree_on_all_cpus() -> Result<()> {
    all_agree(Known::Outdated)
}

#[test]
fn connections_of_a_client_whose_backend_is_gone_agree_on_all_cpus() -> Result<()> {
    all_agree(Known::Gone)
}

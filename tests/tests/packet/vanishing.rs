//! Rows that vanish while programs read them: the kernel gives their places to other connections at once.

use std::{
    net::IpAddr,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use aya_obj::generated::bpf_cmd;
use proxy_common::maps::conntrack::{CtEntry, CtKey, EGRESS, INGRESS};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore as _},
    kernel::KernelAddr,
};

use crate::{
    bench::{BACKEND_PORT, Bench, CONTINUE, Plan, SERVICE_PORT, plans, v4_of, v6_of},
    bpf::{self, Kind},
    connection::{Row, TRANSPORTS, each_row, forget, pass, row, rows},
    cpus,
    forgotten::connections,
    frames::{ACK, Flow, SYN, checked, frame},
};

/// Test runs pass this device.
const DEVICE: u32 = 1;
/// The storm has raged when each CPU has translated so many packets, and removed so many rows of others.
const ENOUGH: usize = 1000;
const DEADLINE: Duration = Duration::from_secs(60);
const PORTS: std::ops::Range<u16> = 1024..6024;

fn conntrack(bench: &Bench, plan: &Plan) -> OwnedFd {
    let name = if plan.pod.is_ipv4() { "conntrack_v4" } else { "conntrack_v6" };
    bpf::open(&bench.pins.map(name)).expect("the map")
}

/// Removes a row; false if there is none.
fn delete<A: KernelAddr>(table: BorrowedFd<'_>, key: &CtKey<A>) -> bool {
    let mut attr = bpf::attr();
    // SAFETY: this member of the union is the one the command reads.
    let element = unsafe { &mut attr.__bindgen_anon_2 };
    element.map_fd = table.as_raw_fd() as u32;
    element.key = std::ptr::from_ref(key) as u64;
    bpf::bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, &mut attr).is_ok()
}

/// Makes a row what a program finds that has read half of it before another took its place. Those beside it are looked
/// at by the next packet.
fn tear<A: KernelAddr + Into<IpAddr>>(maps: &mut impl FamilyMaps<A>, table: BorrowedFd<'_>, torn: &Row) {
    let mut kept = each_row(maps);
    kept.iter_mut().for_each(|(_, entry)| entry.ticks = entry.ticks.wrapping_sub(1));
    maps.put_conntrack(&kept).expect("rows");
    for (key, entry) in each_row(maps).iter().filter(|(key, entry)| row(key, entry) == *torn) {
        let half = CtEntry { dst: entry.src, dport: entry.dport ^ 1, ..*entry };
        bpf::put(table, key, &half).expect("a row");
    }
}

#[test]
fn what_was_read_by_half_is_no_row() {
    let mut bench = Bench::new();
    for plan in plans() {
        let table = conntrack(&bench, &plan);
        for new in TRANSPORTS {
            let connections = connections(&mut bench, &plan, new);
            let before = rows(&mut bench);
            for torn in &before {
                if plan.pod.is_ipv4() {
                    tear(bench.maps.v4(), table.as_fd(), torn);
                } else {
                    tear(bench.maps.v6(), table.as_fd(), torn);
                }
                assert_ne!(rows(&mut bench), before, "{torn:?}");
                for (name, connection) in &connections {
                    let what = format!("{torn:?}, {name}");
                    pass(&mut bench, &connection.forward, ACK, &what);
                    pass(&mut bench, &connection.back, ACK, &what);
                }
                assert_eq!(rows(&mut bench), before, "{torn:?}");
            }
            forget(&mut bench, |_| true);
        }
    }
}

/// A CPU that opens connections one after the other.
struct Cpu {
    number: usize,
    client: IpAddr,
    /// The port of its present one.
    port: AtomicU16,
    /// Packets that were translated.
    translated: AtomicUsize,
    /// Rows of others that it has removed.
    removed: AtomicUsize,
}

impl Cpu {
    fn has_done(&self, is_alone: bool) -> bool {
        self.translated.load(Relaxed) >= ENOUGH && (is_alone || self.removed.load(Relaxed) >= ENOUGH)
    }
}

/// What programs and keys one of them has.
struct Work<'a> {
    plan: Plan,
    ingress: BorrowedFd<'a>,
    egress: BorrowedFd<'a>,
    table: BorrowedFd<'a>,
}

impl Work<'_> {
    /// As its client sends it, and as it comes to the backend.
    fn flows(&self, cpu: &Cpu) -> (Flow, Flow) {
        let client = (cpu.client, cpu.port.load(Relaxed));
        let flow = Flow::tcp(client, (self.plan.cluster_ip, SERVICE_PORT));
        (flow, Flow::tcp(client, (self.plan.backend, BACKEND_PORT)))
    }

    /// Passes a packet, which becomes what it should, goes on as it came, or is refused. True for the first.
    fn pass(&self, program: BorrowedFd<'_>, from: Flow, to: Flow, flags: u8) -> bool {
        let run = bpf::run(program, Kind::Tc, &frame(from, flags), DEVICE, 1).expect("a run");
        if run.verdict != CONTINUE {
            return false;
        }
        let became = checked(&run.packet);
        assert!(became == to || became == from, "{from:?} became {became:?}");
        became == to
    }

    /// Opens connections, and removes what the others have just entered, until all have done enough or one has failed.
    fn run(&self, own: &Cpu, all: &[Cpu], failed: &AtomicBool) -> Result<()> {
        cpus::move_to(own.number)?;
        let begin = Instant::now();
        for port in PORTS.cycle() {
            own.port.store(port, Relaxed);
            let (outside, inside) = self.flows(own);
            let mut translated = usize::from(self.pass(self.ingress, outside, inside, SYN));
            for other in all.iter().filter(|other| other.number != own.number) {
                own.removed.fetch_add(self.remove(other), Relaxed);
            }
            translated += usize::from(self.pass(self.ingress, outside, inside, ACK));
            translated += usize::from(self.pass(self.egress, inside.reversed(), outside.reversed(), ACK));
            own.translated.fetch_add(translated, Relaxed);
            self.remove(own);
            if all.iter().all(|cpu| cpu.has_done(all.len() == 1)) || failed.load(Relaxed) {
                break;
            }
            ensure!(begin.elapsed() < DEADLINE, "too little after {DEADLINE:?}");
        }
        Ok(())
    }

    fn remove(&self, other: &Cpu) -> usize {
        let (outside, inside) = self.flows(other);
        if self.plan.pod.is_ipv4() {
            self.remove_rows(v4_of, outside, inside)
        } else {
            self.remove_rows(v6_of, outside, inside)
        }
    }

    fn remove_rows<A: KernelAddr>(&self, addr: fn(IpAddr) -> A, outside: Flow, inside: Flow) -> usize {
        let key = |flow: Flow, hook| CtKey {
            src: addr(flow.src.0),
            dst: addr(flow.dst.0),
            sport: flow.src.1,
            dport: flow.dst.1,
            proto: flow.proto,
            hook,
            pad: 0,
        };
        let keys = [key(outside, INGRESS), key(inside.reversed(), EGRESS)];
        keys.iter().filter(|key| delete(self.table, key)).count()
    }
}

/// Has the others end, when the test fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(thread::panicking(), Relaxed);
    }
}

#[test]
fn no_packet_follows_the_row_of_another_on_any_cpu() -> Result<()> {
    let numbers = cpus::numbers()?;
    for plan in plans() {
        let bench = Bench::new();
        let table = conntrack(&bench, &plan);
        let program = |name| bench.datapath.program(name).expect("it is loaded");
        let (ingress, egress, table) = (program("shunt_in"), program("shunt_out"), table.as_fd());
        let work = &Work { plan, ingress, egress, table };
        let client = |number: usize| match plan.pod {
            IpAddr::V4(_) => [10, 0, 77, number as u8].into(),
            IpAddr::V6(_) => [0xfd00, 0x10, 0x77, 0, 0, 0, 0, number as u16].into(),
        };
        let cpu = |number: &usize| Cpu {
            number: *number,
            client: client(*number),
            port: 0.into(),
            translated: 0.into(),
            removed: 0.into(),
        };
        let cpus: &Vec<_> = &numbers.iter().map(cpu).collect();
        let failed = &AtomicBool::new(false);
        thread::scope(|scope| {
            let run = |own| {
                scope.spawn(move || {
                    let _ended = Ended(failed);
                    work.run(own, cpus, failed)
                })
            };
            let threads: Vec<_> = cpus.iter().map(run).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("its own connections alone"))
        })?;
    }
    Ok(())
}

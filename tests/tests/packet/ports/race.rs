//! CPUs that want the port of the same connection.

use std::thread;

use proxy_common::DropReason;

use super::{bench, client, close, open};
use crate::{
    bench::{SHOT, plans},
    bpf::{self, Kind},
    frames::{Flow, RST, SYN, frame},
};

/// Test runs pass this device.
const DEVICE: u32 = 1;
const THREADS: u16 = 2;
/// One for each thread, and no more.
const PORTS: u16 = THREADS;
const ROUNDS: u16 = 5000;

/// Each holds one port at a time, so there is always one that gives way.
#[test]
fn each_has_one_where_none_is_free() {
    let mut bench = bench(PORTS);
    for plan in plans() {
        for number in 0..PORTS {
            let connection = open(&mut bench, &plan, number);
            close(&mut bench, &connection);
        }
        let [ingress, egress] =
            ["shunt_in", "shunt_out"].map(|name| bench.datapath.program(name).expect("it is loaded"));
        let pass = |program, frame: &[u8]| bpf::run(program, Kind::Tc, frame, DEVICE, 1).expect("a run");
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let flow = client(&plan, Flow::tcp, 100 + thread * ROUNDS + round);
                        for flags in [SYN, RST] {
                            let inside = pass(ingress, &frame(flow, flags));
                            let wire = pass(egress, &inside.packet);
                            assert_ne!(wire.verdict, SHOT, "thread {thread}, round {round}");
                        }
                    }
                });
            }
        });
        assert_eq!(bench.drops(DropReason::SnatPortsExhausted), 0);
    }
}

//! Rows of `conntrack` that the kernel has forgotten, or somebody deleted, while the rest of their
//! connection lives on.

use std::collections::{BTreeMap, HashSet};

use anyhow::{Result, ensure};
use proxy_common::{
    DropReason,
    maps::{
        conntrack::{Role, flags::LASTING},
        settings::{Settings, flags::HANDOVER},
    },
};
use proxy_userspace::dataplane::MapStore as _;

use crate::{
    bench::{
        BACKEND_ID, BACKEND_PORT, Bench, NODE_PORT, Plan, REDIRECT, SERVICE_PORT, SHOT, STICKY_BACKEND,
        STICKY_SLOT, plans,
    },
    connection::{Connection, Hook, NewFlow, Row, TRANSPORTS, change, forget, forget_roles, pass, rows},
    frames::{ACK, Flow, SYN, checked, frame},
    uplink::{Node, on_a_node},
};

const XDP_PASS: i32 = 2;
const XDP_TX: i32 = 3;

/// The ways that a connection may go by.
pub(crate) fn connections(
    bench: &mut Bench,
    plan: &Plan,
    new: NewFlow,
) -> BTreeMap<&'static str, Connection> {
    let pod = new((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
    let outside = new((plan.outside, 40001), (plan.node, NODE_PORT));
    let [plain, masked] = [Connection::open(bench, pod), Connection::open_masqueraded(bench, outside)];
    let beside = Connection::open(bench, new((plan.pod, 40000), (plan.backend, BACKEND_PORT)));
    assert_ne!(beside.forward[0].1, beside.forward[0].2, "its tuple is the first one's");
    [("plain", plain), ("masqueraded", masked), ("direct", beside)].into()
}

#[test]
fn the_next_packet_of_the_client_finds_any_row_again() {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in TRANSPORTS {
            let connections = connections(&mut bench, &plan, new);
            let before = rows(&mut bench);
            assert_eq!(before.len(), 8);
            for lost in &before {
                assert_eq!(forget(&mut bench, |row| row == lost), 1);
                for (name, connection) in &connections {
                    let what = format!("{lost:?}, {name}");
                    pass(&mut bench, &connection.forward, ACK, &what);
                    pass(&mut bench, &connection.back, ACK, &what);
                }
                assert_eq!(rows(&mut bench), before, "{lost:?}");
            }
            forget(&mut bench, |_| true);
        }
    }
}

/// But for the row that its own packet meets first: nothing else tells whose it is.
#[test]
fn the_next_packet_of_the_backend_finds_any_other_row_again() {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in TRANSPORTS {
            let connections = connections(&mut bench, &plan, new);
            let before = rows(&mut bench);
            for lost in &before {
                assert_eq!(forget(&mut bench, |row| row == lost), 1);
                for (name, connection) in &connections {
                    if !connection.is_first_of_reply(lost) {
                        pass(&mut bench, &connection.back, ACK, &format!("{lost:?}, {name}"));
                    }
                }
                let of_backend = connections.values().any(|c| c.is_first_of_reply(lost));
                assert_eq!(rows(&mut bench) == before, !of_backend, "{lost:?}");
                connections.values().for_each(|c| pass(&mut bench, &c.forward, ACK, "the client goes on"));
                connections.values().for_each(|c| pass(&mut bench, &c.back, ACK, "and is answered"));
                assert_eq!(rows(&mut bench), before, "{lost:?}");
            }
            forget(&mut bench, |_| true);
        }
    }
}

#[test]
fn a_process_of_the_host_goes_on() {
    let mut bench = Bench::new();
    for plan in plans() {
        (BACKEND_ID..BACKEND_ID + 3).for_each(|id| bench.move_backend(&plan, id));
        for new in TRANSPORTS {
            let original = new((plan.node, 40000), (plan.cluster_ip, SERVICE_PORT));
            let run = bench.egress_of_host(&frame(original, SYN));
            let connection = Connection::of(vec![(Hook::OutOfHost, original, checked(&run.packet))]);
            pass(&mut bench, &connection.back, SYN | ACK, "the answer");
            let before = rows(&mut bench);
            assert_eq!(before.len(), 2, "{before:?}");
            for role in [Role::HOST, Role::REV_HOST] {
                forget_roles(&mut bench, &[role]);
                pass(&mut bench, &connection.forward, ACK, "the process");
                pass(&mut bench, &connection.back, ACK, "the answer");
                assert_eq!(rows(&mut bench), before, "{role:?}");
            }
            forget(&mut bench, |_| true);
        }
    }
}

#[test]
fn with_session_affinity_too() {
    let mut bench = Bench::new();
    for plan in plans() {
        for port in 40000..40008 {
            let flow = Flow::tcp((plan.pod, port), (plan.sticky_ip, SERVICE_PORT));
            let connection = Connection::open(&mut bench, flow);
            forget_roles(&mut bench, &[Role::DNAT]);
            pass(&mut bench, &connection.forward, ACK, "the client");
            forget_roles(&mut bench, &[Role::DNAT, Role::REV_DNAT]);
        }
    }
}

/// The first place that is looked at is another backend's then.
#[test]
fn when_backends_have_come_and_gone_too() {
    let mut bench = Bench::new();
    let slots: Vec<u32> = (STICKY_BACKEND..STICKY_BACKEND + 8).collect();
    let rotated: Vec<u32> = slots.iter().cycle().skip(3).take(8).copied().collect();
    for plan in plans() {
        bench.forget_affinity(&plan);
        bench.put_slots(&plan, STICKY_SLOT, &slots);
        let open = |bench: &mut Bench, port| {
            Connection::open(bench, Flow::tcp((plan.pod, port), (plan.sticky_ip, SERVICE_PORT)))
        };
        let connections: Vec<_> = (40000..40016).map(|port| open(&mut bench, port)).collect();
        let backends: HashSet<_> = connections.iter().map(|c| c.forward[0].2.dst).collect();
        assert!(backends.len() > 1, "{backends:?}");
        bench.put_slots(&plan, STICKY_SLOT, &rotated);
        assert_eq!(forget(&mut bench, |row| row.role == Role::DNAT), connections.len());
        for connection in &connections {
            pass(&mut bench, &connection.forward, ACK, "the client");
        }
        forget(&mut bench, |_| true);
    }
}

/// Nothing is left by which the backend could be known.
#[test]
fn a_client_whose_connection_is_forgotten_wholly_is_refused() {
    let mut bench = Bench::new();
    for plan in plans() {
        let flow = Flow::tcp((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
        Connection::open(&mut bench, flow);
        forget_roles(&mut bench, &[Role::DNAT, Role::REV_DNAT]);
        let before = bench.drops(DropReason::NoConnection);
        assert_eq!(bench.ingress(&frame(flow, ACK)).action, REDIRECT);
        assert_eq!(bench.drops(DropReason::NoConnection), before + 1);
        assert_eq!(rows(&mut bench), []);
    }
}

/// The other client gets its own answers, whatever the first one sends.
#[test]
fn a_port_that_has_become_anothers_stays_its_own() {
    let mut bench = Bench::new();
    let settings = bench.maps.settings().expect("settings");
    bench.maps.put_settings(&Settings { snat_port_count: 1, ..settings }).expect("settings");
    for plan in plans() {
        for new in TRANSPORTS {
            let [first, second] =
                [40000, 40001].map(|port| new((plan.outside, port), (plan.node, NODE_PORT)));
            let mine = Connection::open_masqueraded(&mut bench, first);
            forget_roles(&mut bench, &[Role::REV_SNAT]);
            let theirs = Connection::open_masqueraded(&mut bench, second);
            assert_eq!(mine.forward[1].2, theirs.forward[1].2, "one port for both");
            // Else a datagram's port is had again, if there is no other.
            change(&mut bench, |_, flags, ticks| {
                *flags |= LASTING;
                *ticks = ticks.wrapping_sub(1);
            });
            let exhausted = bench.drops(DropReason::SnatPortsExhausted);
            pass(&mut bench, &mine.forward[..1], ACK, "the first");
            assert_eq!(bench.egress(&frame(mine.forward[1].1, ACK)).action, SHOT);
            assert_eq!(bench.drops(DropReason::SnatPortsExhausted), exhausted + 1);
            pass(&mut bench, &theirs.forward, ACK, "the second");
            pass(&mut bench, &theirs.back, ACK, "the second's answer");
            forget(&mut bench, |_| true);
        }
    }
}

/// The rows are in other maps then, whose programs know the port by which the client is masqueraded.
#[test]
fn what_has_been_handed_over_is_not_entered_again() {
    let mut bench = Bench::new();
    for plan in plans() {
        let outside = Flow::tcp((plan.outside, 40000), (plan.node, NODE_PORT));
        let connection = Connection::open_masqueraded(&mut bench, outside);
        let inside = connection.forward[0].2;
        bench.set_flag(HANDOVER, true);
        forget_roles(&mut bench, &[Role::SNAT, Role::REV_SNAT]);
        assert_eq!(bench.enters(outside, ACK), inside);
        assert_eq!(bench.leaves(inside, ACK), inside, "left to the programs that have the row");
        bench.set_flag(HANDOVER, false);
        forget(&mut bench, |_| true);
    }
}

/// What the driver misses goes up, is found again there, and the driver goes on.
#[test]
fn the_driver_goes_on_once_the_row_is_found() -> Result<()> {
    on_a_node(|node| {
        for (plan, new) in plans().into_iter().flat_map(|plan| TRANSPORTS.map(|new| (plan, new))) {
            let outside = new((plan.outside, 40000), (plan.node, NODE_PORT));
            let wire = checked(&node.xdp(&frame(outside, SYN))?.packet);
            let replied = checked(&node.xdp(&frame(wire.reversed(), SYN | ACK))?.packet);
            ensure!(replied == outside.reversed(), "{replied:?}");
            for (first, last) in [(outside, wire), (wire.reversed(), outside.reversed())] {
                goes_on(node, first, last)?;
            }
            forget(&mut node.bench, |_| true);
        }
        Ok(())
    })
}

fn goes_on(node: &mut Node, first: Flow, last: Flow) -> Result<()> {
    let bytes = frame(first, ACK);
    let before = rows(&mut node.bench);
    ensure!(before.len() == 4, "{before:?}");
    let is_reply = |row: &Row| row.from == first && row.role == Role::REV_SNAT;
    for lost in before.iter().filter(|row| !is_reply(row)) {
        forget(&mut node.bench, |row| row == lost);
        let up = node.xdp(&bytes)?;
        ensure!((up.verdict, &up.packet) == (XDP_PASS, &bytes) || checked(&up.packet) == last, "{lost:?}");
        let stack = checked(&node.tc(&bytes)?.packet);
        ensure!(stack == last, "{lost:?}: {stack:?}");
        forget(&mut node.bench, |_| false);
        let sent = node.xdp(&bytes)?;
        ensure!(sent.verdict == XDP_TX && checked(&sent.packet) == last, "{lost:?}");
    }
    Ok(())
}

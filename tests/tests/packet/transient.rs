//! Floods: connections that are not established, and those that have ended, make room for others, and
//! established ones for nobody.

use anyhow::{Result, ensure};
use nix::time::ClockId;
use proxy_common::{
    DropReason,
    maps::{
        conntrack::{Role, flags::LASTING},
        transient::Queue,
    },
};

use crate::{
    bench::{BACKEND_ID, Bench, NODE_PORT, Plan, SERVICE_PORT, SHOT, plans},
    connection::{Connection, NewFlow, Row, a_while_later, change, forget, pass, rows},
    frames::{ACK, FIN, Flow, RST, SYN, checked, frame},
    uplink::{Uplink, on_a_node},
};

/// Rows of the table, of each family.
const ROWS: u32 = 1024;
/// Rows of a masqueraded connection.
const OF_ONE: u32 = 4;

/// A client's packets to the node, by a port that tells it from others.
fn client(plan: &Plan, new: NewFlow, number: u16) -> Flow {
    new((plan.outside, 20_000 + number), (plan.node, NODE_PORT))
}

/// From so many clients, the first packets alone; returns where that of the last one went.
fn flood(bench: &mut Bench, plan: &Plan, new: NewFlow, clients: u16) -> Flow {
    let mut wire = None;
    for number in 0..clients {
        let inside = bench.enters(client(plan, new, number), SYN);
        wire = Some(bench.leaves(inside, SYN));
    }
    wire.expect("clients")
}

fn established(bench: &mut Bench, plan: &Plan, new: NewFlow, count: u16) -> Vec<Connection> {
    let open = |number| Connection::open_masqueraded(bench, client(plan, new, 10_000 + number));
    let connections: Vec<_> = (0..count).map(open).collect();
    change(bench, |_, flags, _| *flags |= LASTING);
    connections
}

fn go_on(bench: &mut Bench, connections: &[Connection], what: &str) {
    for connection in connections {
        pass(bench, &connection.forward, ACK, what);
        pass(bench, &connection.back, ACK, what);
    }
}

fn close(bench: &mut Bench, connection: &Connection) {
    pass(bench, &connection.forward, FIN | ACK, "the client's end");
    pass(bench, &connection.back, FIN | ACK, "the backend's end");
    pass(bench, &connection.forward, ACK, "the last word");
}

fn nothing_is_dropped(bench: &Bench) {
    assert!(bench.all_drops().iter().all(|(_, count)| *count == 0), "{:?}", bench.all_drops());
}

fn is_of(connection: &Connection, row: &Row) -> bool {
    connection.forward.iter().chain(&connection.back).any(|(_, before, _)| *before == row.from)
}

#[test]
fn established_connections_outlive_floods() {
    for plan in plans() {
        for (new, queue) in [
            (Flow::tcp as NewFlow, Queue::Opening),
            (Flow::udp, Queue::Datagram),
            (Flow::sctp, Queue::Datagram),
        ] {
            let mut bench = Bench::with_conntrack(ROWS);
            let kept = established(&mut bench, &plan, new, 20);
            flood(&mut bench, &plan, new, 1500);
            go_on(&mut bench, &kept, "after the flood");
            let most = OF_ONE * (20 + queue.places(ROWS));
            assert_eq!(rows(&mut bench).len(), most as usize, "{queue:?}: the flood fills its queue alone");
            nothing_is_dropped(&bench);
        }
    }
}

#[test]
fn who_asks_during_a_flood_is_answered() {
    let mut bench = Bench::with_conntrack(ROWS);
    for plan in plans() {
        flood(&mut bench, &plan, Flow::tcp, 500);
        let asked = client(&plan, Flow::tcp, 9_000);
        let inside = bench.enters(asked, SYN);
        let wire = bench.leaves(inside, SYN);
        // So many that the next one would take its place.
        flood(&mut bench, &plan, Flow::tcp, (Queue::Opening.places(ROWS) - 1) as u16);
        assert_eq!(bench.enters(wire.reversed(), SYN | ACK), inside.reversed());
        assert_eq!(bench.leaves(inside.reversed(), SYN | ACK), asked.reversed());
        assert_eq!(bench.enters(asked, ACK), inside);
        assert_eq!(bench.leaves(inside, ACK), wire);
        flood(&mut bench, &plan, Flow::tcp, 500);
        assert_eq!(bench.enters(asked, ACK), inside, "it is established");
        nothing_is_dropped(&bench);
        forget(&mut bench, |_| true);
    }
}

#[test]
fn the_driver_keeps_floods_apart_too() {
    on_a_node(|node| {
        node.bench = Bench::with_conntrack(ROWS);
        node.bench.maps.replace_devices(&[(node.uplink.ifindex, Uplink::device())])?;
        for plan in plans() {
            let flow = client(&plan, Flow::tcp, 10_000);
            let wire = checked(&node.xdp(&frame(flow, SYN))?.packet);
            for (before, flags) in [(wire.reversed(), SYN | ACK), (flow, ACK)] {
                node.xdp(&frame(before, flags))?;
            }
            for number in 0..600 {
                node.xdp(&frame(client(&plan, Flow::tcp, number), SYN))?;
            }
            assert_eq!(checked(&node.xdp(&frame(flow, ACK))?.packet), wire);
            assert_eq!(checked(&node.xdp(&frame(wire.reversed(), ACK))?.packet), flow.reversed());
            let most = OF_ONE * (1 + Queue::Opening.places(ROWS));
            assert_eq!(rows(&mut node.bench).len(), most as usize);
            forget(&mut node.bench, |_| true);
            for number in 0..300 {
                let flow = client(&plan, Flow::tcp, number);
                let wire = checked(&node.xdp(&frame(flow, SYN))?.packet);
                let ends = [(flow, FIN | ACK), (wire.reversed(), FIN | ACK)];
                for (before, flags) in [(wire.reversed(), SYN | ACK), (flow, ACK)].into_iter().chain(ends) {
                    node.xdp(&frame(before, flags))?;
                }
            }
            assert_eq!(rows(&mut node.bench).len(), (OF_ONE * Queue::Ended.places(ROWS)) as usize);
            forget(&mut node.bench, |_| true);
        }
        Ok(())
    })
    .expect("a node");
}

/// The driver notes what ends a connection, although the stack sends it on.
#[test]
fn connections_that_the_stack_sends_on_for_the_driver_end_too() -> Result<()> {
    on_a_node(|node| {
        node.bench = Bench::with_conntrack(ROWS);
        node.bench.maps.replace_devices(&[(node.uplink.ifindex, Uplink::device())])?;
        node.namespace.ip("route add blackhole 10.0.0.0/24\nroute add blackhole fd00:10::/64")?;
        for plan in plans() {
            for number in 0..300 {
                let flow = client(&plan, Flow::tcp, number);
                let goes_up = |flags| -> Result<Flow> {
                    let bytes = frame(flow, flags);
                    let run = node.xdp(&bytes)?;
                    ensure!(run.packet == bytes, "sent on by the driver");
                    Ok(checked(&node.tc(&bytes)?.packet))
                };
                let wire = goes_up(SYN)?;
                node.xdp(&frame(wire.reversed(), SYN | ACK))?;
                goes_up(ACK)?;
                node.xdp(&frame(wire.reversed(), FIN | ACK))?;
                goes_up(FIN | ACK)?;
            }
            ensure!(rows(&mut node.bench).len() == (OF_ONE * Queue::Ended.places(ROWS)) as usize);
            forget(&mut node.bench, |_| true);
        }
        Ok(())
    })
}

#[test]
fn ended_connections_leave_the_table_as_others_end() {
    for plan in plans() {
        for reset in [false, true] {
            let mut bench = Bench::with_conntrack(ROWS);
            let kept = established(&mut bench, &plan, Flow::tcp, 5);
            for number in 0..600 {
                let connection = Connection::open_masqueraded(&mut bench, client(&plan, Flow::tcp, number));
                if reset {
                    pass(&mut bench, &connection.back, RST, "the backend's end");
                } else {
                    close(&mut bench, &connection);
                }
            }
            go_on(&mut bench, &kept, "beside those that end");
            let most = OF_ONE * (5 + Queue::Ended.places(ROWS));
            assert_eq!(rows(&mut bench).len(), most as usize);
            nothing_is_dropped(&bench);
        }
    }
}

/// The places of its first connection, which has ended, are taken while the second one is open.
#[test]
fn another_connection_by_the_same_port_is_kept() {
    let mut bench = Bench::with_conntrack(ROWS);
    for plan in plans() {
        let flow = client(&plan, Flow::tcp, 10_000);
        let first = Connection::open_masqueraded(&mut bench, flow);
        close(&mut bench, &first);
        let second = Connection::open_masqueraded(&mut bench, flow);
        for number in 0..600 {
            let other = Connection::open_masqueraded(&mut bench, client(&plan, Flow::tcp, number));
            pass(&mut bench, &other.back, RST, "the end of another");
        }
        go_on(&mut bench, &[second], "after the places of the first are taken");
        forget(&mut bench, |_| true);
    }
}

/// Programs know the time to a timer tick.
fn a_tick_later() {
    let now = || nix::time::clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).expect("a clock");
    let before = now();
    while now() == before {
        std::hint::spin_loop();
    }
}

/// As many as have places among those that have ended, but one.
fn others_end(bench: &mut Bench, plan: &Plan) {
    for number in 1..Queue::Ended.places(ROWS) as u16 {
        let other = Connection::open_masqueraded(bench, client(plan, Flow::tcp, number));
        close(bench, &other);
    }
    a_tick_later();
}

/// As it ends it takes the place of that one.
#[test]
fn a_connection_outlives_another_by_its_port_to_the_end() {
    let mut bench = Bench::with_conntrack(ROWS);
    for plan in plans() {
        let flow = client(&plan, Flow::tcp, 10_000);
        let first = Connection::open_masqueraded(&mut bench, flow);
        close(&mut bench, &first);
        others_end(&mut bench, &plan);
        let second = Connection::open_masqueraded(&mut bench, flow);
        close(&mut bench, &second);
        nothing_is_dropped(&bench);
        forget(&mut bench, |_| true);
    }
}

/// Their replies are those of one backend to one port of the client.
#[test]
fn a_connection_outlives_another_by_its_port_to_another_frontend() {
    for plan in plans() {
        let by = |address| Flow::tcp((plan.pod, 7_000), (address, SERVICE_PORT));
        let mut bench = Bench::with_conntrack(ROWS);
        let first = Connection::open(&mut bench, by(plan.cluster_ip));
        close(&mut bench, &first);
        others_end(&mut bench, &plan);
        a_while_later(&mut bench);
        let second = Connection::open(&mut bench, by(plan.other_ip));
        assert_eq!(second.forward[0].2, first.forward[0].2, "they look the same to the backend");
        close(&mut bench, &second);
        nothing_is_dropped(&bench);
        assert!(!rows(&mut bench).iter().any(|row| row.from == first.forward[0].1), "its place is taken");
    }
}

/// The backend may not have had the client's last word.
#[test]
fn a_port_leads_by_another_one_where_it_has_just_been_closed() {
    for plan in plans() {
        let by = |address| Flow::tcp((plan.pod, 7_000), (address, SERVICE_PORT));
        let mut bench = Bench::with_conntrack(ROWS);
        let first = Connection::open(&mut bench, by(plan.cluster_ip));
        pass(&mut bench, &first.back, FIN | ACK, "the backend's end");
        let second = Connection::open(&mut bench, by(plan.other_ip));
        assert_ne!(second.forward[0].2.src, first.forward[0].2.src);
        pass(&mut bench, &first.forward, FIN | ACK, "the client's end");
        pass(&mut bench, &first.back, ACK, "the backend's last word");
        close(&mut bench, &second);
        nothing_is_dropped(&bench);
    }
}

#[test]
fn connections_to_backends_themselves_give_way_too() {
    let mut bench = Bench::with_conntrack(ROWS);
    for plan in plans() {
        let kept = Connection::open(&mut bench, Flow::udp((plan.pod, 7_000), (plan.cluster_ip, 80)));
        change(&mut bench, |_, flags, _| *flags |= LASTING);
        for number in 0..600 {
            bench.enters(Flow::udp((plan.pod, 20_000 + number), (plan.backend, 8080)), 0);
        }
        let noted = rows(&mut bench).iter().filter(|row| row.role == Role::PASS).count();
        assert!(noted <= Queue::Datagram.places(ROWS) as usize, "{noted}");
        go_on(&mut bench, &[kept], "beside them");
        forget(&mut bench, |_| true);
    }
}

#[test]
fn a_table_full_of_connections_that_last_refuses_new_ones_until_some_end() {
    const SMALL: u32 = 64;
    for plan in plans() {
        let mut bench = Bench::with_conntrack(SMALL);
        let kept = established(&mut bench, &plan, Flow::tcp, (SMALL / OF_ONE) as u16);
        let refused = client(&plan, Flow::tcp, 0);
        for _ in 0..3 {
            assert_eq!(bench.ingress(&frame(refused, SYN)).action, SHOT);
        }
        assert_eq!(bench.drops(DropReason::ConntrackFull), 3);
        go_on(&mut bench, &kept, "in a full table");
        let (first, others) = kept.split_first().expect("connections");
        pass(&mut bench, &first.back, RST, "one ends");
        assert_eq!(bench.ingress(&frame(refused, SYN)).action, SHOT, "it makes room for those to come");
        let next = Connection::open_masqueraded(&mut bench, refused);
        go_on(&mut bench, &[next], "in the room of one that has ended");
        go_on(&mut bench, others, "beside it");
        assert!(rows(&mut bench).iter().all(|row| !is_of(first, row)), "all of its rows have left");
    }
}

/// All rows but so many are those of connections that last.
fn almost_full(bench: &mut Bench, plan: &Plan, room: u32, free: u32) -> Vec<Connection> {
    let mut kept = established(bench, plan, Flow::tcp, (room / OF_ONE - 1) as u16);
    let flow = Flow::tcp((plan.pod, 7_000), (plan.cluster_ip, SERVICE_PORT));
    kept.push(Connection::open(bench, flow));
    if free == 1 {
        bench.enters(Flow::udp((plan.pod, 20_000), (plan.backend, 8080)), 0);
    }
    change(bench, |_, flags, _| *flags |= LASTING);
    assert_eq!(rows(bench).len(), (room - free) as usize);
    kept
}

/// Where there is room for a part of its rows, none of them stays.
#[test]
fn refused_connections_leave_nothing_behind() {
    const SMALL: u32 = 64;
    for plan in plans() {
        for (new, free) in [(Flow::tcp as NewFlow, 1), (Flow::tcp, 2), (Flow::udp, 1), (Flow::udp, 2)] {
            let mut bench = Bench::with_conntrack(SMALL);
            let kept = almost_full(&mut bench, &plan, SMALL, free);
            // Where the host has a way to them.
            (BACKEND_ID..BACKEND_ID + 3).for_each(|id| bench.move_backend(&plan, id));
            for number in 0..20 {
                let port = 20_000 + number;
                let from_pod = new((plan.pod, port), (plan.cluster_ip, SERVICE_PORT));
                let from_host = new((plan.node, port), (plan.cluster_ip, SERVICE_PORT));
                let mut refused = vec![bench.ingress(&frame(client(&plan, new, number), SYN))];
                if free == 1 {
                    refused.push(bench.ingress(&frame(from_pod, SYN)));
                    refused.push(bench.egress_of_host(&frame(from_host, SYN)));
                }
                assert!(refused.iter().all(|run| run.action == SHOT), "{free} free");
                let left = rows(&mut bench);
                assert_eq!(left.len(), (SMALL - free) as usize, "{free} free: {left:#?}");
            }
            assert_eq!(bench.drops(DropReason::ConntrackFull), if free == 1 { 60 } else { 20 });
            go_on(&mut bench, &kept, "in a full table");
        }
    }
}

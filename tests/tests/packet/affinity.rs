//! ClientIP session affinity.

use proxy_common::maps::{
    frontends::{Frontend, FrontendKey},
    slots::SlotRange,
};
use proxy_userspace::dataplane::{FamilyMaps, MapStore};

use crate::{
    bench::{Bench, Plan, SERVICE_PORT, STICKY_BACKEND, STICKY_SLOT, plans, v4_of, v6_of},
    frames::{Flow, SYN},
};

/// The backend port of a new connection.
fn connect(bench: &mut Bench, plan: &Plan, client: std::net::IpAddr, port: u16) -> u16 {
    bench.enters(Flow::tcp((client, port), (plan.sticky_ip, SERVICE_PORT)), SYN).dst.1
}

#[test]
fn a_client_stays_and_clients_spread() {
    let mut bench = Bench::new();
    for plan in plans() {
        let first = connect(&mut bench, &plan, plan.pod, 40000);
        for port in 40001..40020 {
            assert_eq!(connect(&mut bench, &plan, plan.pod, port), first);
        }
        let other = |i: u8| match plan.pod {
            std::net::IpAddr::V4(_) => std::net::IpAddr::from([10, 9, 9, i]),
            std::net::IpAddr::V6(_) => std::net::IpAddr::from([0xfd00, 0x10, 9, 9, 0, 0, 0, i.into()]),
        };
        let chosen: std::collections::HashSet<_> =
            (0..100).map(|i| connect(&mut bench, &plan, other(i), 40000)).collect();
        assert!(chosen.len() > 1, "a hundred clients at one of eight backends");
    }
}

#[test]
fn a_client_stays_when_the_service_moves_to_other_slots() {
    let mut bench = Bench::new();
    for plan in plans() {
        let first = connect(&mut bench, &plan, plan.pod, 40000);
        let moved = SlotRange { offset: 100, len: 8 };
        let ids: Vec<u32> = (STICKY_BACKEND..STICKY_BACKEND + 8).rev().collect();
        change(&mut bench, &plan, moved, &ids);
        for port in 40001..40020 {
            assert_eq!(connect(&mut bench, &plan, plan.pod, port), first);
        }
    }
}

#[test]
fn a_client_moves_when_its_backend_is_no_candidate_any_more() {
    let mut bench = Bench::new();
    for plan in plans() {
        let first = connect(&mut bench, &plan, plan.pod, 40000);
        let gone = STICKY_BACKEND + u32::from(first - crate::bench::BACKEND_PORT - 1);
        let ids: Vec<u32> = (STICKY_BACKEND..STICKY_BACKEND + 8).filter(|id| *id != gone).collect();
        change(&mut bench, &plan, SlotRange { offset: STICKY_SLOT + 100, len: 7 }, &ids);
        let second = connect(&mut bench, &plan, plan.pod, 40001);
        assert_ne!(second, first);
        assert_eq!(connect(&mut bench, &plan, plan.pod, 40002), second);
    }
}

/// Gives the service these candidates, as the agent would.
fn change(bench: &mut Bench, plan: &Plan, range: SlotRange, ids: &[u32]) {
    if plan.pod.is_ipv4() {
        change_in(bench.maps.v4(), v4_of(plan.sticky_ip), range, ids);
    } else {
        change_in(bench.maps.v6(), v6_of(plan.sticky_ip), range, ids);
    }
}

fn change_in<A: proxy_userspace::kernel::KernelAddr>(
    maps: &mut impl FamilyMaps<A>,
    addr: A,
    range: SlotRange,
    ids: &[u32],
) {
    let key = FrontendKey { addr, port: SERVICE_PORT, proto: 6, pad: 0 };
    let rows = maps.frontends().expect("readable");
    let row = rows.iter().find(|(k, _)| *k == key).expect("the service").1;
    maps.put_slots(range.offset, ids).expect("slots");
    maps.put_frontends(&[(key, Frontend { cluster: range, ..row })]).expect("the frontend");
}

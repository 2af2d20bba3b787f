use std::net::IpAddr;

use proxy_common::maps::frontends::{Frontend, Kind};

use super::*;
use crate::{
    dataplane::{MemoryMaps, Reconciler, testing::*},
    model::Family,
};

fn fresh(capacity: u32) -> (MemoryMaps, Reconciler) {
    let mut maps = MemoryMaps::new(capacity);
    let mut reconciler = Reconciler::adopt(&mut maps).expect("empty maps");
    reconciler.prune();
    (maps, reconciler)
}

fn slots(maps: &MemoryMaps, range: SlotRange) -> &[u32] {
    &maps.v4.slots[range.offset as usize..(range.offset + range.len) as usize]
}

fn addresses(maps: &MemoryMaps, frontend: Frontend) -> Vec<IpAddr> {
    let address = |id: &u32| maps.v4.backends[*id as usize].addr.into();
    slots(maps, frontend.cluster).iter().map(address).collect()
}

#[test]
fn a_table_is_made_and_written_once() {
    let (mut maps, mut reconciler) = fresh(100_000);
    let plans = || vec![hashed(plan("a", Family::V4, 1, &[1, 2, 4]))];
    reconciler.update(name("a"), plans());
    reconciler.apply(&mut maps);
    let written = frontend(&maps, 1).expect("written");
    assert_eq!((written.cluster.len, written.flags & 2), (16_411, 2));
    for _ in 0..2 {
        reconciler.update(name("a"), plans());
        assert_eq!(reconciler.apply(&mut maps).rows, 0);
        assert_eq!(reconciler.full_sync(&mut maps).expect("memory").total(), 0);
        reconciler = Reconciler::adopt(&mut maps).expect("sound maps");
    }
    reconciler.update(name("a"), plans());
    assert_eq!(reconciler.apply(&mut maps).rows, 0, "what an earlier agent wrote is taken over");
}

/// Ids differ with the order in which backends became known; where slots lead does not.
#[test]
fn every_node_has_the_same_table() {
    let tables = [1, 4].map(|first| {
        let (mut maps, mut reconciler) = fresh(100_000);
        reconciler.update(name("b"), vec![plan("b", Family::V4, 2, &[first])]);
        reconciler.apply(&mut maps);
        reconciler.update(name("a"), vec![hashed(plan("a", Family::V4, 1, &[1, 2, 4]))]);
        reconciler.apply(&mut maps);
        let frontend = frontend(&maps, 1).expect("written");
        let ids = slots(&maps, frontend.cluster).to_vec();
        (addresses(&maps, frontend), ids)
    });
    assert!(tables[0].0 == tables[1].0);
    assert!(tables[0].1 != tables[1].1, "the order made no difference to ids");
}

#[test]
fn without_room_tables_are_smaller_and_grow_again() {
    let (mut maps, mut reconciler) = fresh(70_000);
    let mut lens = Vec::new();
    for (service, address) in [("a", 1), ("b", 2), ("c", 3)] {
        reconciler.update(name(service), vec![hashed(plan(service, Family::V4, address, &[2, 4]))]);
        reconciler.apply(&mut maps);
        lens.push(frontend(&maps, address).expect("written").cluster.len);
    }
    assert_eq!(lens, [16_411, 16_411, 16_411]);
    reconciler.update(name("d"), vec![hashed(plan("d", Family::V4, 4, &[2, 4]))]);
    reconciler.apply(&mut maps);
    let len = |maps: &MemoryMaps| frontend(maps, 4).expect("written").cluster.len;
    assert_eq!((len(&maps), reconciler.v4.reduced_tables()), (1601, 1));
    reconciler.update(name("d"), vec![hashed(plan("d", Family::V4, 4, &[2, 4]))]);
    assert_eq!(reconciler.apply(&mut maps).rows, 0, "still no room, and nothing to write");

    reconciler.remove(name("a"));
    reconciler.apply(&mut maps);
    reconciler.apply(&mut maps);
    reconciler.update(name("d"), vec![hashed(plan("d", Family::V4, 4, &[2, 4]))]);
    reconciler.apply(&mut maps);
    assert_eq!((len(&maps), reconciler.v4.reduced_tables()), (16_411, 0));
}

#[test]
fn one_slot_each_is_the_least() {
    let (mut maps, mut reconciler) = fresh(16);
    let plans = vec![hashed(plan("a", Family::V4, 1, &[1, 2, 3, 4, 5, 6]))];
    reconciler.update(name("a"), plans.clone());
    assert_eq!(reconciler.apply(&mut maps).failed, 0);
    assert_eq!(meaning(&maps), wanted(&plans));
    assert_eq!(frontend(&maps, 1).expect("written").cluster.len, 6);
}

#[test]
fn direct_returns_are_for_backends_here() {
    let (mut maps, mut reconciler) = fresh(100_000);
    let mut plan = hashed(plan("a", Family::V4, 1, &[2, 4]));
    plan.returning = hashed(super::super::testing::plan("a", Family::V4, 1, &[1, 3])).local.backends;
    for row in plan.frontends.iter_mut().filter(|row| row.kind != Kind::ADDRESS) {
        row.rules.external.0 = proxy_common::maps::frontends::ClientRule::DSR;
    }
    reconciler.update(name("a"), vec![plan]);
    reconciler.apply(&mut maps);
    let frontend = frontend(&maps, 1).expect("written");
    assert_eq!((frontend.cluster.len, frontend.local.len), (16_411, 2));
}

mod histories;
mod passing;

use proxy_common::maps::{
    backends::flags::PRESENT,
    frontends::{Frontend, FrontendKey},
};

use super::*;
use crate::dataplane::{Fault, MapName, MemoryMaps, Readers, Repairs, Room, testing::*};

const V4: Family = Family::V4;
const V6: Family = Family::V6;

fn fresh(capacity: u32) -> (MemoryMaps, Reconciler) {
    let mut maps = MemoryMaps::new(capacity);
    let mut reconciler = Reconciler::adopt(&mut maps).expect("empty maps");
    reconciler.prune();
    (maps, reconciler)
}

#[test]
fn plans_become_rows_once() {
    let (mut maps, mut reconciler) = fresh(64);
    let plans = [plan("a", V4, 1, &[1, 2]), plan("a", V6, 1, &[1, 2])];
    reconciler.update(name("a"), plans.to_vec());
    let applied = reconciler.apply(&mut maps);
    assert_eq!((applied.services, applied.failed), (1, 0));
    assert_eq!(meaning(&maps), wanted(&plans));

    let written = maps.rows_written();
    assert_eq!(applied.rows as u64, written);
    reconciler.update(name("a"), plans.to_vec());
    assert_eq!(reconciler.apply(&mut maps).rows, 0);
    assert_eq!(reconciler.full_sync(&mut maps).expect("memory").total(), 0);
    assert_eq!(maps.rows_written(), written);
}

#[test]
fn services_share_a_backend() {
    let (mut maps, mut reconciler) = fresh(64);
    reconciler.update(name("a"), vec![plan("a", V4, 1, &[1, 2])]);
    reconciler.update(name("b"), vec![plan("b", V4, 2, &[2])]);
    reconciler.apply(&mut maps);
    assert_eq!(maps.v4.backends.iter().filter(|row| row.flags & PRESENT != 0).count(), 2);
    reconciler.remove(name("a"));
    reconciler.apply(&mut maps);
    assert_eq!(meaning(&maps), wanted(&[plan("b", V4, 2, &[2])]));
    assert_eq!(leftovers(&maps), 0);
}

#[test]
fn an_update_leaves_the_old_range_alone() {
    let (mut maps, mut reconciler) = fresh(64);
    reconciler.update(name("a"), vec![plan("a", V4, 1, &[2, 4])]);
    reconciler.apply(&mut maps);
    let old = frontend(&maps, 1).expect("written").cluster;
    let slots = maps.v4.slots.clone();
    reconciler.update(name("a"), vec![plan("a", V4, 1, &[2, 6])]);
    reconciler.apply(&mut maps);
    let new = frontend(&maps, 1).expect("written").cluster;
    assert_ne!(old, new);
    let (start, end) = (old.offset as usize, (old.offset + old.len) as usize);
    assert_eq!(maps.v4.slots[start..end], slots[start..end]);
}

#[test]
fn a_restart_writes_nothing() {
    let (mut maps, mut reconciler) = fresh(64);
    let plans = [plan("a", V4, 1, &[1, 2]), plan("a", V6, 1, &[3])];
    reconciler.update(name("a"), plans.to_vec());
    reconciler.update(name("b"), vec![plan("b", V4, 2, &[])]);
    reconciler.apply(&mut maps);

    let (written, before) = (maps.rows_written(), format!("{maps:?}"));
    let mut restarted = Reconciler::adopt(&mut maps).expect("sound maps");
    restarted.update(name("a"), plans.to_vec());
    restarted.update(name("b"), vec![plan("b", V4, 2, &[])]);
    assert_eq!(restarted.apply(&mut maps).rows, 0);
    restarted.prune();
    assert_eq!(restarted.apply(&mut maps).rows, 0);
    assert_eq!((maps.rows_written(), format!("{maps:?}")), (written, before));
}

#[test]
fn what_went_during_a_restart_goes_with_the_pruning() {
    let (mut maps, mut reconciler) = fresh(64);
    reconciler.update(name("a"), vec![plan("a", V4, 1, &[1, 2])]);
    reconciler.update(name("b"), vec![plan("b", V4, 2, &[3])]);
    reconciler.apply(&mut maps);
    // A row of a service without a name, as after a crash.
    let orphan = frontend(&maps, 2).expect("written");
    let key = *maps.v4.frontends.keys().next().expect("a row");
    let key = FrontendKey { addr: [9, 9, 9, 9].into(), ..key };
    maps.v4.frontends.insert(key, Frontend { service: 60, ..orphan });

    let mut restarted = Reconciler::adopt(&mut maps).expect("sound maps");
    restarted.update(name("a"), vec![plan("a", V4, 1, &[1, 2])]);
    restarted.apply(&mut maps);
    assert!(frontend(&maps, 2).is_some(), "unknown rows stay until all is known");
    restarted.prune();
    restarted.apply(&mut maps);
    assert_eq!(meaning(&maps), wanted(&[plan("a", V4, 1, &[1, 2])]));
    assert_eq!(leftovers(&maps), 0);
}

#[test]
fn tampering_is_repaired_and_counted() {
    let (mut maps, mut reconciler) = fresh(64);
    let plans = [plan("a", V4, 1, &[1, 2]), plan("a", V6, 1, &[3])];
    reconciler.update(name("a"), plans.to_vec());
    reconciler.set_node(crate::plan::NodePlan {
        settings: Default::default(),
        addresses: [([192, 0, 2, 1].into(), 1)].into(),
        service_cidrs: Some(["172.30.0.0/16".parse().expect("a range")].into()),
    });
    reconciler.apply(&mut maps);
    let before = format!("{:?} {:?} {:?}", maps.v4.frontends, maps.v4.backends, maps.v4.slots);

    let range = frontend(&maps, 1).expect("written").cluster;
    let key = *maps.v4.frontends.keys().next().expect("a row");
    maps.v4.frontends.remove(&key);
    maps.v4.frontends.insert(FrontendKey { port: 9, ..key }, Default::default());
    maps.v4.slots[range.offset as usize] = 9;
    maps.v4.backends[1] = Default::default();
    maps.v4.backends[50].flags = 1;
    maps.services.clear();
    maps.v4.source_ranges.clear();
    maps.v4.node_addresses.clear();
    let repairs = reconciler.full_sync(&mut maps).expect("memory");
    assert_eq!(
        repairs,
        Repairs { frontends: 2, backends: 2, slots: 1, source_ranges: 1, services: 1, node: 1 }
    );
    assert_eq!(meaning(&maps), wanted(&plans));
    assert_eq!(format!("{:?} {:?} {:?}", maps.v4.frontends, maps.v4.backends, maps.v4.slots), before);
    assert_eq!(reconciler.full_sync(&mut maps).expect("memory").total(), 0);
}

#[test]
fn a_service_that_is_too_large_holds_up_no_other() {
    let (mut maps, mut reconciler) = fresh(8);
    reconciler.update(name("a"), vec![plan("a", V4, 1, &[2, 4])]);
    reconciler.update(name("big"), vec![plan("big", V4, 2, &[10, 12, 14, 16, 18])]);
    reconciler.update(name("c"), vec![plan("c", V4, 3, &[6])]);
    let applied = reconciler.apply(&mut maps);
    assert_eq!((applied.services, applied.failed), (2, 0));
    assert_eq!(meaning(&maps), wanted(&[plan("a", V4, 1, &[2, 4]), plan("c", V4, 3, &[6])]));
    assert_eq!(
        (reconciler.pending_count(), [V4, V6].map(|family| reconciler.is_pending(family))),
        (0, [false; 2])
    );
    let refused: Vec<_> = reconciler.refused().collect();
    assert!(
        matches!(
            refused[..],
            [(service, MapError::TooLarge { map: MapName::Backends, rows: 5, share: 4, capacity: 8 })]
                if *service == name("big")
        ),
        "{refused:?}"
    );

    assert_eq!(reconciler.retry_refused(&mut maps), Applied::default(), "the map is as small as before");
    reconciler.update(name("big"), vec![plan("big", V4, 2, &[10])]);
    assert_eq!(reconciler.apply(&mut maps).services, 1);
    assert_eq!((reconciler.pending_count(), reconciler.refused_count()), (0, 0));
    assert_eq!(leftovers(&maps), 0);
}

#[test]
fn a_service_that_finds_no_room_leaves_no_trace_and_is_tried_again_when_there_is_some() {
    let mut maps = MemoryMaps::with_room(Room { frontends: 8, ..Room::each(64) });
    let mut reconciler = Reconciler::adopt(&mut maps).expect("empty maps");
    reconciler.prune();
    let two = |service: &str, place: u8| {
        [place, place + 1].map(|place| plan(service, V4, place, &[place])).map(|mut plan| {
            plan.name.port = format!("p{:?}", plan.frontends[0].addr).into();
            plan
        })
    };
    let (a, b, c) = (two("a", 1), two("b", 3), two("c", 5));
    for (service, plans) in [("a", &a), ("b", &b), ("c", &c)] {
        reconciler.update(name(service), plans.to_vec());
    }
    assert_eq!(reconciler.apply(&mut maps).services, 2);
    let served = [a.clone(), b.clone()].concat();
    assert_eq!(meaning(&maps), wanted(&served), "not half of the third one either");
    assert_eq!((leftovers(&maps), maps.services.len()), (0, 4));
    let why = reconciler.refused().next().expect("the third").1;
    assert!(matches!(why, MapError::Full { map: MapName::Frontends, capacity: 8 }), "{why:?}");
    assert!(!reconciler.may_have_room());

    // What others want is written, and what the refused one wants now counts.
    let changed = [plan("b", V4, 3, &[30])];
    reconciler.update(name("b"), changed.to_vec());
    assert_eq!(reconciler.apply(&mut maps).services, 1);
    assert!(reconciler.may_have_room(), "one port has gone");
    reconciler.retry_refused(&mut maps);
    assert_eq!((reconciler.refused_count(), reconciler.may_have_room()), (1, false));
    reconciler.remove(name("a"));
    reconciler.apply(&mut maps);
    assert!(reconciler.may_have_room());
    assert_eq!(reconciler.retry_refused(&mut maps).services, 1);
    assert_eq!(meaning(&maps), wanted(&[&changed[..], &c].concat()));
    assert_eq!((reconciler.refused_count(), leftovers(&maps)), (0, 0));
}

#[test]
fn ranges_without_room_refuse_their_service() {
    let mut maps = MemoryMaps::with_room(Room { source_ranges: 3, ..Room::each(64) });
    let mut reconciler = Reconciler::adopt(&mut maps).expect("empty maps");
    for (service, place) in [("a", 2), ("b", 4), ("c", 6), ("d", 8)] {
        reconciler.update(name(service), vec![plan(service, V4, place, &[place])]);
    }
    reconciler.apply(&mut maps);
    let refused: Vec<_> =
        reconciler.refused().map(|(service, why)| (service.clone(), why.to_string())).collect();
    assert_eq!(refused, [(name("d"), "map source_ranges is full (3 rows)".to_owned())]);
}

#[test]
fn a_failed_write_is_made_good() {
    let (mut maps, mut reconciler) = fresh(64);
    maps.v4.faults.next = vec![Fault { after: 0, rows: 1 }, Fault { after: 0, rows: 0 }];
    reconciler.update(name("a"), vec![plan("a", V4, 1, &[1, 2])]);
    let applied = reconciler.apply(&mut maps);
    assert_eq!((applied.services, applied.failed), (0, 1));
    assert_eq!(reconciler.pending().count(), 1);
    assert_eq!(reconciler.apply(&mut maps).failed, 1);
    assert_eq!(reconciler.apply(&mut maps).services, 1);
    assert_eq!(reconciler.apply(&mut maps), Applied::default());
    assert_eq!(meaning(&maps), wanted(&[plan("a", V4, 1, &[1, 2])]));
    assert_eq!(reconciler.pending_count(), 0);
}

#[test]
fn an_address_passes_from_one_service_to_another() {
    let (mut maps, mut reconciler) = fresh(64);
    reconciler.update(name("a"), vec![plan("a", V4, 1, &[2])]);
    reconciler.apply(&mut maps);
    reconciler.remove(name("a"));
    reconciler.update(name("b"), vec![plan("b", V4, 1, &[4])]);
    reconciler.apply(&mut maps);
    assert_eq!(meaning(&maps), wanted(&[plan("b", V4, 1, &[4])]));
    assert_eq!(leftovers(&maps), 0);
    assert_eq!(reconciler.full_sync(&mut maps).expect("memory").total(), 0);
}

#[test]
fn a_lingering_backend_keeps_its_row() {
    let (mut maps, mut reconciler) = fresh(64);
    reconciler.update(name("a"), vec![plan("a", V4, 1, &[2, 4])]);
    reconciler.apply(&mut maps);
    let rows = |maps: &MemoryMaps| maps.v4.backends.iter().filter(|row| row.flags & PRESENT != 0).count();
    reconciler.update(name("a"), vec![lingering(plan("a", V4, 1, &[4]), &[2, 6])]);
    reconciler.apply(&mut maps);
    assert_eq!(rows(&maps), 2, "2 lingers, 6 never had a flow");

    let mut restarted = Reconciler::adopt(&mut maps).expect("sound maps");
    restarted.update(name("a"), vec![lingering(plan("a", V4, 1, &[4]), &[2])]);
    restarted.prune();
    assert_eq!(restarted.apply(&mut maps).rows, 0);
    restarted.update(name("a"), vec![plan("a", V4, 1, &[4])]);
    restarted.apply(&mut maps);
    assert_eq!(rows(&maps), 1);
}

#[test]
fn a_lingering_backend_keeps_its_row_however_many_services_come_first() {
    let (mut maps, mut reconciler) = fresh(64);
    reconciler.update(name("z"), vec![plan("z", V4, 1, &[2, 4])]);
    reconciler.apply(&mut maps);
    reconciler.update(name("z"), vec![lingering(plan("z", V4, 1, &[4]), &[2])]);
    reconciler.apply(&mut maps);
    let rows = |maps: &MemoryMaps| maps.v4.backends.iter().filter(|row| row.flags & PRESENT != 0).count();

    let mut restarted = Reconciler::adopt(&mut maps).expect("sound maps");
    (0..=CHUNK).for_each(|number| restarted.remove(name(&format!("a{number}"))));
    restarted.update(name("z"), vec![lingering(plan("z", V4, 1, &[4]), &[2])]);
    restarted.prune();
    assert_eq!((restarted.apply(&mut maps).rows, rows(&maps)), (0, 2));

    let mut restarted = Reconciler::adopt(&mut maps).expect("sound maps");
    restarted.update(name("z"), vec![plan("z", V4, 1, &[4])]);
    restarted.apply(&mut maps);
    assert_eq!(rows(&maps), 2, "there may be services that are not planned yet");
    restarted.prune();
    restarted.apply(&mut maps);
    assert_eq!(rows(&maps), 1);
}

#[test]
fn backends_of_an_earlier_agent_make_room_where_there_is_none() {
    let mut maps = MemoryMaps::with_room(Room { backends: 7, ..Room::each(64) });
    let mut reconciler = Reconciler::adopt(&mut maps).expect("empty maps");
    reconciler.update(name("a"), vec![plan("a", V4, 1, &[1, 2, 3])]);
    assert_eq!(reconciler.apply(&mut maps).failed, 0);
    reconciler.update(name("a"), vec![lingering(plan("a", V4, 1, &[1]), &[2, 3])]);
    reconciler.apply(&mut maps);
    let mut restarted = Reconciler::adopt(&mut maps).expect("sound maps");
    restarted.update(name("b"), vec![plan("b", V4, 2, &[5])]);
    assert_eq!(restarted.apply(&mut maps).failed, 0);
    assert_eq!(meaning(&maps), wanted(&[plan("a", V4, 1, &[1]), plan("b", V4, 2, &[5])]));
}

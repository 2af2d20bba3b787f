//! Addresses that pass from one Service to another are there at every instant.

use super::*;

/// Two Services that have the addresses 1 and 2, in chunks of this size.
fn two(chunk: usize) -> (MemoryMaps, Reconciler) {
    let (mut maps, mut reconciler) = fresh(64);
    reconciler.chunk = chunk;
    reconciler.update(name("a"), vec![plan("a", V4, 1, &[2, 3])]);
    reconciler.update(name("b"), vec![plan("b", V4, 2, &[4, 5])]);
    reconciler.apply(&mut maps);
    (maps, reconciler)
}

/// From some write on, whichever, none succeeds; later they do.
fn check(chunk: usize, change: &[(&str, Vec<PortPlan>)], stay: &[u8]) {
    for after in 0..40 {
        let (mut maps, mut reconciler) = two(chunk);
        let fails = Fault { after: 0, rows: 0 };
        maps.v4.faults.next = [vec![Fault { after, ..fails }], vec![fails; 64]].concat();
        change.iter().for_each(|(service, plans)| reconciler.update(name(service), plans.clone()));
        for _ in 0..3 {
            reconciler.apply(&mut maps);
            meaning(&maps);
            for address in stay {
                assert!(frontend(&maps, *address).is_some(), "{address} is gone after {after} writes");
            }
        }
        maps.v4.faults.next.clear();
        reconciler.apply(&mut maps);
        let plans: Vec<_> = change.iter().flat_map(|(_, plans)| plans.clone()).collect();
        assert_eq!(meaning(&maps), wanted(&plans), "after {after} writes");
        assert_eq!((reconciler.pending_count(), leftovers(&maps)), (0, 0));
        assert_eq!(reconciler.full_sync(&mut maps).expect("memory").total(), 0);
    }
}

#[test]
fn an_address_is_never_absent_while_it_passes_on() {
    for chunk in [1, CHUNK] {
        let (to_a, to_b) = (plan("a", V4, 2, &[2, 3]), plan("b", V4, 1, &[6, 7]));
        // The one that loses it is written first, or last.
        check(chunk, &[("a", vec![]), ("b", vec![to_b.clone()])], &[1]);
        check(chunk, &[("a", vec![to_a.clone()]), ("b", vec![])], &[2]);
        check(chunk, &[("a", vec![to_a]), ("b", vec![to_b])], &[1, 2]);
    }
}

#[test]
fn what_passes_on_makes_room_where_there_is_none() {
    let mut maps = MemoryMaps::with_room(Room { backends: 5, ..Room::each(64) });
    let mut reconciler = Reconciler::adopt(&mut maps).expect("empty maps");
    reconciler.prune();
    reconciler.chunk = 1;
    reconciler.update(name("a"), vec![plan("a", V4, 1, &[2, 3])]);
    reconciler.update(name("b"), vec![plan("b", V4, 2, &[4, 5])]);
    reconciler.apply(&mut maps);
    let passed = plan("b", V4, 1, &[6, 7]);
    reconciler.remove(name("a"));
    reconciler.update(name("b"), vec![passed.clone()]);
    reconciler.apply(&mut maps);
    assert_eq!((reconciler.pending_count(), reconciler.refused_count()), (0, 0));
    assert_eq!((meaning(&maps), leftovers(&maps)), (wanted(&[passed]), 0));
}

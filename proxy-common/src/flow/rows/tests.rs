use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{
    Ip4, Ip6,
    flow::testing::{Ends, Rows, TestAddr, ends},
    proto,
};

/// All rows that can be made of one, and of those made.
fn made_of<A: TestAddr>(key: CtKey<A>, entry: CtEntry<A>) -> Rows<A> {
    let mut rows = Rows::new();
    let mut todo = Vec::from([(key, entry)]);
    while let Some((key, entry)) = todo.pop() {
        if rows.contains_key(&key) {
            continue;
        }
        rows.insert(key, entry);
        let mut row = CtEntry::default();
        entry.write_pair(&key.tuple(), &mut row);
        todo.push((entry.pair(key.proto, key.hook), row));
        if entry.has_next() && entry.write_next(&key.tuple(), &mut row) {
            todo.push((entry.next(key.proto), row));
        }
    }
    rows
}

fn each_row_tells_all<A: TestAddr>(ends: Ends<A>) -> Result<(), TestCaseError> {
    for kind in 0..5 {
        let rows = ends.rows(kind);
        for (key, entry) in &rows {
            prop_assert_eq!(&made_of(*key, *entry), &rows);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_row_tells_what_the_others_are_v4(ends in ends(any::<[u8; 4]>().prop_map(Ip4::from))) {
        each_row_tells_all(ends)?;
    }

    #[test]
    fn any_row_tells_what_the_others_are_v6(ends in ends(any::<[u8; 16]>().prop_map(Ip6::from))) {
        each_row_tells_all(ends)?;
    }
}

/// As after an upgrade from a layout that did not name them.
#[test]
fn where_ends_are_unknown_the_next_packet_finds_them() {
    let ip = |last| Ip4::from([10, 0, 0, last]);
    let own = Tuple { src: ip(1), dst: ip(2), sport: 1, dport: 80, proto: proto::TCP };
    let target = Tuple { dst: ip(3), dport: 8080, ..own };
    let mut entry = CtEntry { role: Role::DNAT.0, flags: flags::SNAT, ..CtEntry::default() };
    entry.set_target(&target);
    let mut row = CtEntry::default();
    assert!(entry.write_next(&own, &mut row));
    assert_eq!((row.role, row.flags), (Role::SNAT.0, flags::SNAT | flags::SNAT_PENDING));
    assert_eq!(row.target(proto::TCP), target);
    let mut reply = CtEntry { role: Role::REV_SNAT.0, flags: flags::SNAT, ..CtEntry::default() };
    reply.set_target(&target.reversed());
    assert!(!reply.write_next(&own.reversed(), &mut row));
}

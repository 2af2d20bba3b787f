use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{
    Ip4, Ip6,
    flow::testing::{Ends, Rows, TestAddr, ends},
    packet::headers::tcp_flags::{FIN, SYN},
};

/// The connections that rows stand for, each with the keys of all its rows.
fn connections<A: TestAddr>(rows: &Rows<A>) -> Vec<(Connection<A>, Vec<CtKey<A>>)> {
    let mut found = Vec::new();
    for (key, row) in rows {
        let (find, mut other) = (|key: &CtKey<A>| rows.get(key), CtKey::default());
        let Some(connection) = Connection::of(key, row, find) else { continue };
        let mut keys = Vec::from([*key]);
        connection.each_other(key, row, find, &mut other, |key| keys.push(*key));
        found.push((connection, keys));
    }
    found
}

/// Whichever rows are lost, each that is left belongs to one connection, and all to one while the first is there.
fn each_row_has_one_connection<A: TestAddr>(ends: Ends<A>) -> Result<(), TestCaseError> {
    for kind in 0..5 {
        let all: Vec<_> = ends.rows(kind).into_iter().collect();
        for left in 0..1 << all.len() {
            let rows: Rows<A> =
                all.iter().enumerate().filter(|(n, _)| left >> n & 1 != 0).map(|(_, row)| *row).collect();
            let found = connections(&rows);
            let mut keys: Vec<_> = found.iter().flat_map(|(_, keys)| keys.clone()).collect();
            prop_assert_eq!(keys.len(), rows.len(), "of {} in {:?}", kind, &rows);
            prop_assert!(keys.iter().all(|key| rows.contains_key(key)));
            keys.sort_by_key(|key| std::format!("{key:?}"));
            keys.dedup();
            prop_assert_eq!(keys.len(), rows.len(), "of {} in {:?}", kind, &rows);
            if rows.values().any(|row| Role(row.role).is_primary()) {
                prop_assert_eq!(found.len(), 1, "of {} in {:?}", kind, &rows);
            }
            for (connection, keys) in &found {
                prop_assert_eq!(usize::from(connection.rows), keys.len());
            }
        }
    }
    Ok(())
}

#[test]
fn what_has_closed_is_kept_while_somebody_may_ask_for_it() {
    let timeout = |role: Role, known, tcp_closed| {
        let seen = SYN | ACK | FIN;
        let closed = Connection::<Ip4> {
            proto: proto::TCP,
            role: role.0,
            forward: seen,
            reply: seen,
            known,
            ..Connection::default()
        };
        closed.timeout(&TimeoutSecs { tcp_closed, ..TimeoutSecs::default() })
    };
    assert_eq!(timeout(Role::DNAT, PAIR, 30), 30);
    assert_eq!(timeout(Role::DNAT, PAIR | NEXT | MASQUERADED, 30), 60, "the backend may be in TIME-WAIT");
    assert_eq!(timeout(Role::DSR, 0, 30), 120, "the backend may go on");
    assert_eq!(timeout(Role::DNAT, PAIR | NEXT | MASQUERADED, 1), 2);
}

proptest! {
    #[test]
    fn each_row_has_one_connection_v4(ends in ends(any::<[u8; 4]>().prop_map(Ip4::from))) {
        each_row_has_one_connection(ends)?;
    }

    #[test]
    fn each_row_has_one_connection_v6(ends in ends(any::<[u8; 16]>().prop_map(Ip6::from))) {
        each_row_has_one_connection(ends)?;
    }
}

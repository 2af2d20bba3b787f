use std::vec::Vec;

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

use super::*;

fn rows() -> impl Strategy<Value = (CtKey<Ip6>, CtEntry<Ip6>)> {
    let addr = || any::<[u8; 16]>().prop_map(|octets| Ip6 { octets });
    let ports = || (any::<u16>(), any::<u16>());
    (addr(), addr(), ports(), any::<u8>(), 0..2_u8, addr(), addr(), ports(), any::<(u32, u32)>()).prop_map(
        |(src, dst, (sport, dport), proto, hook, to_src, to_dst, to_ports, (service, backend))| {
            let key = CtKey { src, dst, sport, dport, proto, hook, pad: 0 };
            let (sport, dport) = to_ports;
            let row =
                CtEntry { src: to_src, dst: to_dst, sport, dport, service, backend, ..CtEntry::default() };
            (key, row.at(&key))
        },
    )
}

/// The same row with the fields that programs go by taken from another, those of which `mask` says so.
fn mixed(one: &CtEntry<Ip6>, other: &CtEntry<Ip6>, mask: u8) -> CtEntry<Ip6> {
    let from = |bit: u8| if mask & 1 << bit == 0 { one } else { other };
    CtEntry {
        src: from(0).src,
        dst: from(1).dst,
        sport: from(2).sport,
        dport: from(3).dport,
        service: from(4).service,
        backend: from(5).backend,
        ..*from(6)
    }
}

proptest! {
    #[test]
    fn what_changes_in_a_row_leaves_it_in_its_place((key, row) in rows(), seen in any::<u64>(), state in any::<[u8; 3]>()) {
        let [flags, tcp_flags, kind] = state;
        let changed = CtEntry { last_seen: seen, flags, tcp_flags, kind, packets: seen, ..row };
        prop_assert!(row.is_at(&key) && changed.is_at(&key));
    }
}

/// Of rows that are read by half, one in 65,536 may pass for whole by chance.
#[test]
fn rows_read_by_half_are_told_from_whole_ones() {
    let mut runner = TestRunner::deterministic();
    let mut passed = Vec::new();
    for _ in 0..500 {
        let ((key, row), (_, other)) = (rows(), rows()).new_tree(&mut runner).expect("two rows").current();
        passed.extend((1..127).map(|mask| mixed(&row, &other, mask)).filter(|mixed| mixed.is_at(&key)));
        let of_next_port = CtKey { sport: key.sport.wrapping_add(1), ..key };
        passed.extend([row].into_iter().filter(|row| row.is_at(&of_next_port)));
    }
    assert!(passed.len() < 10, "{} of 63,500: {:?}", passed.len(), passed.first());
}

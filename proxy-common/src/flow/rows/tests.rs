use std::{collections::HashMap, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::{Ip4, Ip6, proto};

trait TestAddr: Addr + std::fmt::Debug + std::hash::Hash {}
impl<A: Addr + std::fmt::Debug + std::hash::Hash> TestAddr for A {}

/// The ends of a connection.
#[derive(Clone, Copy, Debug)]
struct Ends<A> {
    client: (A, u16),
    frontend: (A, u16),
    backend: (A, u16),
    /// The client's port between the hooks: its own one may be taken at the backend.
    inside_port: u16,
    node: (A, u16),
    proto: u8,
}

type Rows<A> = HashMap<CtKey<A>, CtEntry<A>>;

impl<A: TestAddr> Ends<A> {
    fn tuple(&self, src: (A, u16), dst: (A, u16)) -> Tuple<A> {
        Tuple { src: src.0, dst: dst.0, sport: src.1, dport: dst.1, proto: self.proto }
    }

    fn original(&self) -> Tuple<A> {
        self.tuple(self.client, self.frontend)
    }

    fn inside(&self) -> Tuple<A> {
        self.tuple((self.client.0, self.inside_port), self.backend)
    }

    fn wire(&self) -> Tuple<A> {
        self.tuple(self.node, self.backend)
    }

    fn row(&self, hook: u8, from: Tuple<A>, to: Tuple<A>, role: Role, snat: bool) -> (CtKey<A>, CtEntry<A>) {
        let mut row = CtEntry { role: role.0, service: 3, backend: 4, kind: 1, ..CtEntry::default() };
        row.set_target(&to);
        if snat {
            row.flags = flags::SNAT;
            match role {
                Role::DNAT | Role::REV_DNAT => row.name_masquerade(self.node.0, self.node.1),
                _ => row.name_frontend(&self.original()),
            }
        }
        (CtKey::new(&from, hook), row)
    }

    /// Of a connection that is masqueraded, or not, or a host process's, or one to a backend itself.
    fn rows(&self, kind: usize) -> Rows<A> {
        let (original, inside, wire) = (self.original(), self.inside(), self.wire());
        let pair = |hook, from: Tuple<A>, to: Tuple<A>, roles: [Role; 2], snat| {
            [
                self.row(hook, from, to, roles[0], snat),
                self.row(1 - hook, to.reversed(), from.reversed(), roles[1], snat),
            ]
        };
        match kind {
            0 => pair(INGRESS, original, inside, [Role::DNAT, Role::REV_DNAT], false).into(),
            1 => pair(INGRESS, original, inside, [Role::DNAT, Role::REV_DNAT], true)
                .into_iter()
                .chain(pair(EGRESS, inside, wire, [Role::SNAT, Role::REV_SNAT], true))
                .collect(),
            2 => pair(EGRESS, original, wire, [Role::HOST, Role::REV_HOST], false).into(),
            hook => pair((hook - 3) as u8, inside, wire, [Role::DIRECT, Role::REV_DIRECT], false).into(),
        }
    }
}

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

fn ends<A: TestAddr>(addr: impl Strategy<Value = A>) -> impl Strategy<Value = Ends<A>> {
    let addrs = prop::collection::vec(addr, 4);
    let ports = prop::collection::vec(1u16.., 5);
    let proto = prop::sample::select(&[proto::TCP, proto::UDP, proto::SCTP][..]);
    (addrs, ports, proto).prop_map(|(addrs, ports, proto)| Ends {
        client: (addrs[0], ports[0]),
        frontend: (addrs[1], ports[1]),
        backend: (addrs[2], ports[2]),
        inside_port: ports[3],
        node: (addrs[3], ports[4]),
        proto,
    })
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

//! Connections for tests.

use std::collections::HashMap;

use proptest::prelude::*;

use crate::{
    addr::Addr,
    maps::conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, flags},
    proto,
    tuple::Tuple,
};

pub(super) trait TestAddr: Addr + std::fmt::Debug + std::hash::Hash {}
impl<A: Addr + std::fmt::Debug + std::hash::Hash> TestAddr for A {}

/// The ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends<A> {
    pub(super) client: (A, u16),
    pub(super) frontend: (A, u16),
    pub(super) backend: (A, u16),
    /// The client's port between the hooks: its own one may be taken at the backend.
    pub(super) inside_port: u16,
    pub(super) node: (A, u16),
    pub(super) proto: u8,
}

pub(super) type Rows<A> = HashMap<CtKey<A>, CtEntry<A>>;

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

    /// Of a connection that is not masqueraded, or is, or a host process's, or one to a backend itself.
    pub(super) fn rows(&self, kind: usize) -> Rows<A> {
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

pub(super) fn ends<A: TestAddr>(addr: impl Strategy<Value = A>) -> impl Strategy<Value = Ends<A>> {
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

//! Connections whole, and their rows.

use std::net::IpAddr;

use proxy_common::{
    Tuple,
    maps::conntrack::{CtEntry, CtKey, INGRESS, Role, Ticks},
};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore as _},
    kernel::KernelAddr,
};

use crate::{
    bench::{Bench, CONTINUE, REDIRECT},
    frames::{ACK, Flow, SYN, checked, frame},
};

pub(crate) type NewFlow = fn((IpAddr, u16), (IpAddr, u16)) -> Flow;
pub(crate) const TRANSPORTS: [NewFlow; 3] = [Flow::udp, Flow::tcp, Flow::sctp];

/// What a row does, without its counters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) role: Role,
    pub(crate) hook: Hook,
    pub(crate) from: Flow,
    pub(crate) to: Flow,
}

/// A place where a packet passes: a hook, as it comes there, as it goes on.
pub(crate) type Step = (Hook, Flow, Flow);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Hook {
    In,
    Out,
    /// Out of the host, made by the host.
    OutOfHost,
}

pub(crate) fn each_row<A: KernelAddr>(maps: &impl FamilyMaps<A>) -> Vec<(CtKey<A>, CtEntry<A>)> {
    let mut rows = Vec::new();
    maps.each_conntrack(&mut |key, row| rows.push((*key, *row))).expect("rows");
    rows
}

pub(crate) fn row<A: KernelAddr + Into<IpAddr>>(key: &CtKey<A>, entry: &CtEntry<A>) -> Row {
    let flow = |tuple: Tuple<A>| Flow {
        proto: tuple.proto,
        src: (tuple.src.into(), tuple.sport),
        dst: (tuple.dst.into(), tuple.dport),
    };
    let hook = if key.hook == INGRESS { Hook::In } else { Hook::Out };
    Row { role: Role(entry.role), hook, from: flow(key.tuple()), to: flow(entry.target(key.proto)) }
}

pub(crate) fn rows(bench: &mut Bench) -> Vec<Row> {
    let mut rows: Vec<_> = each_row(bench.maps.v4()).iter().map(|(key, entry)| row(key, entry)).collect();
    rows.extend(each_row(bench.maps.v6()).iter().map(|(key, entry)| row(key, entry)));
    rows.sort_by_key(|row| format!("{row:?}"));
    rows
}

/// Deletes these rows, and has the others looked at by the next packet, as if a timer tick had gone by.
pub(crate) fn forget(bench: &mut Bench, is_gone: impl Fn(&Row) -> bool) -> usize {
    fn in_family<A: KernelAddr + Into<IpAddr>>(
        maps: &mut impl FamilyMaps<A>,
        is_gone: impl Fn(&Row) -> bool,
    ) -> usize {
        let (gone, mut kept): (Vec<_>, Vec<_>) =
            each_row(maps).into_iter().partition(|(key, entry)| is_gone(&row(key, entry)));
        kept.iter_mut().for_each(|(_, entry)| entry.ticks = entry.ticks.wrapping_sub(1));
        maps.delete_conntrack(&gone.iter().map(|(key, _)| *key).collect::<Vec<_>>()).expect("they go");
        maps.put_conntrack(&kept).expect("rows");
        gone.len()
    }
    in_family(bench.maps.v4(), &is_gone) + in_family(bench.maps.v6(), &is_gone)
}

pub(crate) fn forget_roles(bench: &mut Bench, roles: &[Role]) {
    let gone = forget(bench, |row| roles.contains(&row.role));
    assert_eq!(gone, roles.len(), "{roles:?}");
}

pub(crate) fn pass(bench: &mut Bench, steps: &[Step], tcp_flags: u8, what: &str) {
    for (hook, before, behind) in steps {
        let bytes = frame(*before, tcp_flags);
        let run = match hook {
            Hook::In => bench.ingress(&bytes),
            Hook::Out => bench.egress(&bytes),
            Hook::OutOfHost => bench.egress_of_host(&bytes),
        };
        assert!(run.action == CONTINUE || run.action == REDIRECT, "{what}: {hook:?} {before:?}");
        assert_eq!(checked(&run.packet), *behind, "{what}: {hook:?} {before:?}");
    }
}

/// A connection: what its packets pass to the backend, and back.
pub(crate) struct Connection {
    pub(crate) forward: Vec<Step>,
    pub(crate) back: Vec<Step>,
}

impl Connection {
    pub(crate) fn of(forward: Vec<Step>) -> Self {
        let back = forward.iter().rev().map(|(hook, before, behind)| {
            (if *hook == Hook::In { Hook::Out } else { Hook::In }, behind.reversed(), before.reversed())
        });
        Self { back: back.collect(), forward }
    }

    /// Without a masquerade.
    pub(crate) fn open(bench: &mut Bench, flow: Flow) -> Self {
        let inside = bench.enters(flow, SYN);
        let connection = Self::of(vec![(Hook::In, flow, inside)]);
        pass(bench, &connection.back, SYN | ACK, "the answer");
        pass(bench, &connection.forward, ACK, "the acknowledgement");
        connection
    }

    pub(crate) fn open_masqueraded(bench: &mut Bench, flow: Flow) -> Self {
        let inside = bench.enters(flow, SYN);
        let wire = bench.leaves(inside, SYN);
        let connection = Self::of(vec![(Hook::In, flow, inside), (Hook::Out, inside, wire)]);
        pass(bench, &connection.back, SYN | ACK, "the answer");
        pass(bench, &connection.forward, ACK, "the acknowledgement");
        connection
    }

    /// True if the row is the first that the backend's packets meet.
    pub(crate) fn is_first_of_reply(&self, row: &Row) -> bool {
        let (hook, before, _) = self.back[0];
        (row.hook, row.from) == (hook, before)
    }
}

/// Changes flags and timer ticks of every row.
pub(crate) fn change(bench: &mut Bench, change: impl Fn(&Row, &mut u8, &mut Ticks)) {
    fn in_family<A: KernelAddr + Into<IpAddr>>(
        maps: &mut impl FamilyMaps<A>,
        change: impl Fn(&Row, &mut u8, &mut Ticks),
    ) {
        let mut rows = each_row(maps);
        for (key, entry) in &mut rows {
            change(&row(key, entry), &mut entry.flags, &mut entry.ticks);
        }
        maps.put_conntrack(&rows).expect("rows");
    }
    in_family(bench.maps.v4(), &change);
    in_family(bench.maps.v6(), &change);
}

/// So much later that nothing more is heard of connections that have ended.
pub(crate) fn a_while_later(bench: &mut Bench) {
    change(bench, |_, _, ticks| *ticks = ticks.wrapping_sub(1000));
}

/// Every row has been silent for so much longer, in nanoseconds, but for its timer ticks.
pub(crate) fn silence(bench: &mut Bench, longer: u64) {
    fn in_family<A: KernelAddr>(maps: &mut impl FamilyMaps<A>, longer: u64) {
        let mut rows = each_row(maps);
        rows.iter_mut().for_each(|(_, entry)| entry.last_seen -= longer);
        maps.put_conntrack(&rows).expect("rows");
    }
    in_family(bench.maps.v4(), longer);
    in_family(bench.maps.v6(), longer);
}

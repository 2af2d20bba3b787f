//! Rows of `conntrack` that user space writes: of connections that another generation of programs
//! began, to services of which nothing else is left.

use std::net::IpAddr;

use proxy_common::{
    Tuple,
    maps::conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role},
};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore},
    kernel::KernelAddr,
};

use crate::{
    bench::{Bench, plans, v4_of, v6_of},
    frames::{ACK, Flow},
};

/// An address of nobody's service and pods.
fn unknown(family_of: IpAddr, last: u8) -> IpAddr {
    let text = if family_of.is_ipv4() { format!("198.18.7.{last}") } else { format!("2001:db8:7::{last}") };
    text.parse().expect("an address")
}

fn put(bench: &mut Bench, hook: u8, role: Role, from: Flow, to: Flow) {
    if from.src.0.is_ipv4() {
        put_in(bench.maps.v4(), v4_of, hook, role, from, to);
    } else {
        put_in(bench.maps.v6(), v6_of, hook, role, from, to);
    }
}

fn put_in<A: KernelAddr>(
    maps: &mut impl FamilyMaps<A>,
    addr: fn(IpAddr) -> A,
    hook: u8,
    role: Role,
    from: Flow,
    to: Flow,
) {
    let tuple = |Flow { proto, src, dst }: Flow| Tuple {
        src: addr(src.0),
        dst: addr(dst.0),
        sport: src.1,
        dport: dst.1,
        proto,
    };
    let mut row = CtEntry { role: role.0, ..CtEntry::default() };
    row.set_target(&tuple(to));
    maps.put_conntrack(&[(CtKey::new(&tuple(from), hook), row)]).expect("a row");
}

#[test]
fn a_connection_to_a_service_that_is_gone_goes_on() {
    let mut bench = Bench::new();
    for plan in plans() {
        let [client, frontend, backend] = [1, 2, 3].map(|last| (unknown(plan.node, last), 4000));
        let masked = (plan.node, 2000);
        for to in [frontend, (plan.node, 31999)] {
            let (outside, inside) = (Flow::tcp(client, to), Flow::tcp(client, backend));
            let wire = Flow::tcp(masked, backend);
            put(&mut bench, INGRESS, Role::DNAT, outside, inside);
            put(&mut bench, EGRESS, Role::SNAT, inside, wire);
            put(&mut bench, INGRESS, Role::REV_SNAT, wire.reversed(), inside.reversed());
            put(&mut bench, EGRESS, Role::REV_DNAT, inside.reversed(), outside.reversed());
            assert_eq!(bench.enters(outside, ACK), inside);
            assert_eq!(bench.leaves(inside, ACK), wire);
            assert_eq!(bench.enters(wire.reversed(), ACK), inside.reversed());
            assert_eq!(bench.leaves(inside.reversed(), ACK), outside.reversed());
        }
    }
}

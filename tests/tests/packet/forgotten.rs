//! Rows of `conntrack` that the kernel has forgotten while the rest of their connection lives on.

use proxy_common::maps::{
    conntrack::{CtEntry, CtKey, Role},
    settings::flags::HANDOVER,
};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore},
    kernel::KernelAddr,
};

use crate::{
    bench::{Bench, NODE_PORT, Plan, SERVICE_PORT, plans},
    frames::{ACK, Flow, SYN},
};

/// Has the rows of these roles forgotten, and the others looked at again by the next packet, as if
/// seconds had gone by.
fn forget(bench: &mut Bench, plan: &Plan, roles: &[Role]) {
    if plan.pod.is_ipv4() { forget_in(bench.maps.v4(), roles) } else { forget_in(bench.maps.v6(), roles) }
}

fn forget_in<A: KernelAddr>(maps: &mut impl FamilyMaps<A>, roles: &[Role]) {
    let mut rows: Vec<(CtKey<A>, CtEntry<A>)> = Vec::new();
    maps.each_conntrack(&mut |key, row| rows.push((*key, *row))).expect("rows");
    let (gone, mut kept): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|(_, row)| roles.contains(&Role(row.role)));
    assert!(roles.iter().all(|role| gone.iter().any(|(_, row)| row.role == role.0)), "{roles:?}");
    for (_, row) in &mut kept {
        row.last_seen -= 10_000_000_000;
        row.ticks = row.ticks.wrapping_sub(100_000);
    }
    maps.delete_conntrack(&gone.into_iter().map(|(key, _)| key).collect::<Vec<_>>()).expect("they go");
    maps.put_conntrack(&kept).expect("rows");
}

#[test]
fn a_client_that_goes_on_gets_its_answer() {
    let mut bench = Bench::new();
    for plan in plans() {
        for new in [Flow::udp, Flow::tcp, Flow::sctp] {
            let outside = new((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
            let inside = bench.enters(outside, SYN);
            forget(&mut bench, &plan, &[Role::REV_DNAT]);
            assert_eq!(bench.enters(outside, ACK), inside);
            assert_eq!(bench.leaves(inside.reversed(), ACK), outside.reversed());
            forget(&mut bench, &plan, &[Role::DNAT, Role::REV_DNAT]);
        }
    }
}

/// The rows are in other maps then, whose programs know the port by which the client is masqueraded.
#[test]
fn what_has_been_handed_over_is_not_entered_again() {
    let mut bench = Bench::new();
    for plan in plans() {
        let outside = Flow::tcp((plan.outside, 40000), (plan.node, NODE_PORT));
        let inside = bench.enters(outside, SYN);
        bench.leaves(inside, SYN);
        bench.set_flag(HANDOVER, true);
        forget(&mut bench, &plan, &[Role::SNAT, Role::REV_SNAT]);
        assert_eq!(bench.enters(outside, ACK), inside);
        assert_eq!(bench.leaves(inside, ACK), inside, "left to the programs that have the row");
        bench.set_flag(HANDOVER, false);
        forget(&mut bench, &plan, &[Role::DNAT, Role::REV_DNAT]);
    }
}

#[test]
fn a_masqueraded_client_that_goes_on_gets_its_answer() {
    const ALL: [Role; 4] = [Role::DNAT, Role::SNAT, Role::REV_SNAT, Role::REV_DNAT];
    let mut bench = Bench::new();
    for plan in plans() {
        for forgotten in [&[Role::REV_SNAT][..], &[Role::SNAT], &[Role::REV_DNAT], &ALL[1..]] {
            let outside = Flow::udp((plan.outside, 40000), (plan.node, NODE_PORT));
            let inside = bench.enters(outside, 0);
            bench.leaves(inside, 0);
            forget(&mut bench, &plan, forgotten);
            assert_eq!(bench.enters(outside, 0), inside, "{forgotten:?}");
            let wire = bench.leaves(inside, 0);
            assert_eq!((wire.src.0, wire.dst), (plan.node, inside.dst), "{forgotten:?}");
            assert_eq!(bench.enters(wire.reversed(), 0), inside.reversed(), "{forgotten:?}");
            assert_eq!(bench.leaves(inside.reversed(), 0), outside.reversed(), "{forgotten:?}");
            forget(&mut bench, &plan, &ALL);
        }
    }
}

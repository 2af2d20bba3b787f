//! A client's port, used again.

use crate::{
    bench::{BACKEND_ID, BACKEND_PORT, Bench, Plan, SERVICE_PORT, plans, v4_of, v6_of},
    frames::{ACK, Flow, SYN},
};
use proxy_common::maps::backends::{Backend, flags::PRESENT};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapStore},
    kernel::KernelAddr,
};

const OTHER_ID: u32 = 50;
const OTHER_PORT: u16 = BACKEND_PORT + 50;

#[test]
fn a_connection_goes_on_to_a_backend_that_is_gone_and_a_new_one_does_not() {
    let mut bench = Bench::new();
    for plan in plans() {
        let flow = Flow::tcp((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT));
        assert_eq!(bench.enters(flow, SYN).dst, (plan.backend, BACKEND_PORT));
        replace(&mut bench, &plan);
        assert_eq!(bench.enters(flow, ACK).dst, (plan.backend, BACKEND_PORT));
        assert_eq!(bench.enters(flow, SYN).dst, (plan.backend, OTHER_PORT));
        assert_eq!(bench.enters(flow, ACK).dst, (plan.backend, OTHER_PORT));
    }
}

/// Another backend in the place of the only one.
fn replace(bench: &mut Bench, plan: &Plan) {
    if plan.pod.is_ipv4() {
        replace_in(bench.maps.v4(), v4_of(plan.backend));
    } else {
        replace_in(bench.maps.v6(), v6_of(plan.backend));
    }
}

fn replace_in<A: KernelAddr>(maps: &mut impl FamilyMaps<A>, addr: A) {
    let other = Backend { addr, port: OTHER_PORT, proto: 6, flags: PRESENT };
    maps.put_backends(&[(OTHER_ID, other)]).expect("a backend");
    maps.put_slots(BACKEND_ID, &[OTHER_ID]).expect("a slot");
    maps.put_backends(&[(BACKEND_ID, Backend::default())]).expect("no backend");
}

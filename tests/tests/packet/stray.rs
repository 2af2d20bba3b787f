//! Packets in the middle of connections that nothing is known of.

use proxy_common::{
    DropReason,
    maps::settings::flags::{HANDOVER, LOOSE},
};
use proxy_userspace::dataplane::{FamilyMaps as _, MapStore as _};

use crate::{
    bench::{BACKEND_PORT, Bench, CONTINUE, NODE_PORT, Plan, REDIRECT, SERVICE_PORT, SHOT, plans},
    frames::{ACK, FIN, Flow, RST, SYN, checked, frame},
};

/// What begins no connection.
fn in_the_middle(client: (std::net::IpAddr, u16), dst: (std::net::IpAddr, u16)) -> Vec<(Flow, u8)> {
    let tcp = [ACK, SYN | ACK, FIN | ACK].map(|flags| (Flow::tcp(client, dst), flags));
    let sctp = [ACK, SYN | ACK].map(|flags| (Flow::sctp(client, dst), flags));
    [&tcp[..], &sctp].concat()
}

fn assert_no_rows(bench: &mut Bench, what: &str) {
    bench.maps.v4().each_conntrack(&mut |key, _| panic!("{what}: {key:?}")).expect("rows");
    bench.maps.v6().each_conntrack(&mut |key, _| panic!("{what}: {key:?}")).expect("rows");
}

/// A NAT of the host may have sent from a port that is a NodePort.
#[test]
fn at_an_address_of_the_host_it_goes_on_as_it_came() {
    let mut bench = Bench::new();
    for plan in plans() {
        for (flow, flags) in in_the_middle((plan.outside, 443), (plan.node, NODE_PORT)) {
            let bytes = frame(flow, flags);
            let run = bench.ingress(&bytes);
            assert_eq!((run.action, run.packet), (CONTINUE, bytes), "{flow:?} {flags:#x}");
            assert_no_rows(&mut bench, &format!("{flow:?} {flags:#x}"));
        }
    }
}

#[test]
fn at_an_address_of_a_service_the_sender_is_refused() {
    let mut bench = Bench::new();
    let refused = |bench: &Bench| bench.drops(DropReason::NoConnection);
    for Plan { pod, cluster_ip, .. } in plans() {
        for (flow, flags) in in_the_middle((pod, 40000), (cluster_ip, SERVICE_PORT)) {
            let before = refused(&bench);
            let run = bench.ingress(&frame(flow, flags));
            assert_eq!((run.action, refused(&bench)), (REDIRECT, before + 1), "{flow:?} {flags:#x}");
        }
        let reset = Flow::tcp((pod, 40000), (cluster_ip, SERVICE_PORT));
        assert_eq!(bench.ingress(&frame(reset, RST)).action, SHOT, "a reset is never answered");
        assert_no_rows(&mut bench, "refused");
    }
}

#[test]
fn while_maps_are_replaced_the_row_may_be_in_the_other_ones() {
    let mut bench = Bench::new();
    bench.set_flag(HANDOVER, true);
    for plan in plans() {
        for (flow, flags) in in_the_middle((plan.pod, 40000), (plan.cluster_ip, SERVICE_PORT)) {
            let bytes = frame(flow, flags);
            assert_eq!(bench.ingress(&bytes).packet, bytes, "{flow:?} {flags:#x}");
        }
    }
    assert_no_rows(&mut bench, "handover");
}

#[test]
fn loose_tcp_takes_it_for_the_first() {
    let mut bench = Bench::new();
    bench.set_flag(LOOSE, true);
    for plan in plans() {
        for dst in [(plan.cluster_ip, SERVICE_PORT), (plan.node, NODE_PORT)] {
            for (i, (flow, flags)) in in_the_middle((plan.pod, 40000), dst).into_iter().enumerate() {
                let flow = Flow { src: (flow.src.0, 40000 + i as u16), ..flow };
                let run = bench.ingress(&frame(flow, flags));
                assert_eq!(checked(&run.packet).dst, (plan.backend, BACKEND_PORT), "{flow:?} {flags:#x}");
            }
        }
    }
}

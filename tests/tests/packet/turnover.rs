//! Services whose backends come and go while other CPUs choose among them.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::BorrowedFd,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use proxy_common::{maps::frontends::Kind, proto};
use proxy_userspace::{
    dataplane::Reconciler,
    model::{Family, ObjectName, Protocol, ServicePortName},
    plan::{BackendRow, ClientRules, FrontendRow, PortPlan, Scope},
};

use crate::{
    bench::{BACKEND_PORT, Bench, CONTINUE, Plan, SERVICE_PORT, plans},
    bpf::{self, Kind as Program},
    frames::{Flow, SYN, checked, frame},
};

/// Test runs pass this device.
const DEVICE: u32 = 1;
/// Each service has a busy client.
const SERVICES: [u8; 2] = [1, 2];
const ROUNDS: u8 = 250;
const PORTS: std::ops::Range<u16> = 1024..60000;

/// An address of the family; no backend of one service has one of another's.
fn address(plan: &Plan, service: u8, last: u8) -> IpAddr {
    match plan.pod {
        IpAddr::V4(_) => [10, 0, 100 + service, last].into(),
        IpAddr::V6(_) => [0xfd00, 0x10, u16::from(service), 0, 0, 0, 0, u16::from(last)].into(),
    }
}

fn frontend(plan: &Plan, service: u8) -> IpAddr {
    match plan.cluster_ip {
        IpAddr::V4(_) => [172, 30, service, 1].into(),
        IpAddr::V6(_) => [0xfd00, 0x96, 0, 0, 0, 0, u16::from(service), 1].into(),
    }
}

/// The service with one backend, another one in each round.
fn port(plan: &Plan, service: u8, round: u8) -> (ObjectName, Vec<PortPlan>) {
    let name = ObjectName::new("ns", service.to_string());
    let addr = SocketAddr::new(address(plan, service, round), BACKEND_PORT);
    let row = FrontendRow {
        addr: Some(frontend(plan, service)),
        port: SERVICE_PORT,
        proto: proto::TCP,
        kind: Kind::CLUSTER_IP,
        rules: ClientRules::default(),
        source_ranges: false,
        hashed: false,
    };
    let port = PortPlan {
        name: ServicePortName { service: name.clone(), port: "".into() },
        family: if plan.pod.is_ipv4() { Family::V4 } else { Family::V6 },
        protocol: Protocol::Tcp,
        affinity_secs: 0,
        cluster: Scope { backends: [BackendRow { addr, local: true, weight: 1 }].into(), ..Scope::default() },
        local: Scope::default(),
        returning: [].into(),
        lingering: [].into(),
        source_ranges: [].into(),
        frontends: [row].into(),
    };
    (name, vec![port])
}

/// Opens connections to the service for as long as `goes_on`; each must come to a backend of it. Returns how many.
fn connect(program: BorrowedFd<'_>, plan: &Plan, service: u8, goes_on: &AtomicBool) -> usize {
    let client = address(plan, 0, service);
    let is_ours = |addr: IpAddr| (0..=u8::MAX).any(|last| address(plan, service, last) == addr);
    let ports = PORTS.cycle().take_while(|_| goes_on.load(Relaxed));
    let connect = |port| {
        let flow = Flow::tcp((client, port), (frontend(plan, service), SERVICE_PORT));
        let run = bpf::run(program, Program::Tc, &frame(flow, SYN), DEVICE, 1).expect("a run");
        assert_eq!(run.verdict, CONTINUE, "service {service}, port {port}");
        let (addr, _) = checked(&run.packet).dst;
        assert!(is_ours(addr), "service {service}, port {port}: sent to {addr}");
    };
    ports.map(connect).count()
}

/// Has the clients end, also when the test fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

#[test]
fn clients_never_notice_that_another_backend_takes_over() {
    for plan in plans() {
        let Bench { datapath, maps, .. } = &mut Bench::new();
        let mut reconciler = Reconciler::adopt(maps).expect("adopted");
        let mut turn = |round| {
            SERVICES
                .map(|service| port(&plan, service, round))
                .into_iter()
                .for_each(|(name, plans)| reconciler.update(name, plans));
            let applied = reconciler.apply(maps);
            assert_eq!(applied.failed, 0, "round {round}");
        };
        turn(0);
        let program = datapath.program("shunt_in").expect("it is loaded");
        let goes_on = &AtomicBool::new(true);
        thread::scope(|scope| {
            let clients =
                SERVICES.map(|service| scope.spawn(move || connect(program, &plan, service, goes_on)));
            let ended = Ended(goes_on);
            (1..=ROUNDS).for_each(&mut turn);
            drop(ended);
            for client in clients {
                let connections = client.join().expect("every connection came to a backend of its service");
                assert!(connections > usize::from(ROUNDS), "{connections} connections in {ROUNDS} rounds");
            }
        });
    }
}

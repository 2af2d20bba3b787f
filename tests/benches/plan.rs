//! What changes of services cost from the model to rows in memory, in a small and in a large
//! cluster: everything from scratch, one endpoint, and nothing at all.

use std::{hint::black_box, net::Ipv4Addr};

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use proxy_userspace::{
    dataplane::{MemoryMaps, Reconciler, Room},
    model::{
        AddressType, Balancing, Change, Conditions, Config, Endpoint, EndpointSlice, Family, ObjectName,
        Protocol, Service, ServicePort, ServiceType, SlicePort, State, TrafficPolicy,
    },
    plan,
};

/// Services; each has one port and one slice.
const SIZES: [u32; 2] = [1_000, 50_000];
/// Endpoints of each.
const ENDPOINTS: u32 = 10;

fn name(kind: &str, number: u32) -> ObjectName {
    ObjectName::new(format!("ns-{}", number % 100), format!("{kind}-{number}"))
}

fn service(number: u32) -> Service {
    let port = ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, node_port: None };
    Service {
        uid: "".into(),
        name: name("service", number),
        created: 0,
        kind: ServiceType::ClusterIp,
        other_proxy: false,
        headless: false,
        cluster_ips: [Ipv4Addr::from_bits(0x0a60_0000 + number).into()].into(),
        ip_families: [Family::V4].into(),
        external_ips: [].into(),
        ingress: [].into(),
        ports: [port].into(),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        affinity_secs: None,
        source_ranges: [].into(),
        health_check_node_port: None,
        balancing: Balancing::default(),
    }
}

/// A slice whose first endpoint is another one in each `version`.
fn slice(number: u32, version: u32) -> EndpointSlice {
    let endpoint = |index: u32| {
        let moved = if index == 0 { version << 22 } else { 0 };
        Endpoint {
            addr: Ipv4Addr::from_bits(0x6480_0000 + number * ENDPOINTS + index + moved).into(),
            conditions: Conditions::new(Some(true), None, None),
            node: Some(format!("node-{}", index % 5).into()),
            pod: Some(format!("service-{number}-{index}").into()),
            zone: None,
            hints: None,
        }
    };
    EndpointSlice {
        name: name("slice", number),
        service: format!("service-{number}").into(),
        address_type: AddressType::Ip(Family::V4),
        hidden: false,
        ports: [SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: Some(8080) }].into(),
        weights: None,
        endpoints: (0..ENDPOINTS).map(endpoint).collect(),
    }
}

/// What a cluster of this size says.
fn state(services: u32) -> State {
    let mut state = State::new("node-0");
    for number in 0..services {
        state.apply(Change::Service(service(number)));
        state.apply(Change::Slice(slice(number, 0)));
    }
    state
}

fn empty(services: u32) -> (MemoryMaps, Reconciler) {
    let room = Room {
        services: services * 2,
        frontends: services * 4,
        backends: services * ENDPOINTS * 2,
        slots: services * ENDPOINTS * 2,
        source_ranges: services,
    };
    let mut maps = MemoryMaps::with_room(room);
    let reconciler = Reconciler::adopt(&mut maps).expect("empty maps are sound");
    (maps, reconciler)
}

/// Plans and writes these services.
fn write(state: &State, names: impl Iterator<Item = ObjectName>, to: &mut (MemoryMaps, Reconciler)) -> usize {
    let config = Config::default();
    let plans = names.map(|service| {
        let plans = plan::build(state, &service, &config);
        (service, plans)
    });
    let (maps, reconciler) = to;
    reconciler.apply_all(maps, plans).rows
}

fn everything(state: &State) -> impl Iterator<Item = ObjectName> {
    state.everything().services.into_iter()
}

fn full(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("full");
    group.sample_size(10);
    for size in SIZES {
        let state = state(size);
        let config = Config::default();
        group.bench_with_input(BenchmarkId::new("plan", size), &state, |bencher, state| {
            bencher.iter(|| {
                let plans = everything(state).map(|service| plan::build(state, &service, &config).len());
                black_box(plans.sum::<usize>())
            });
        });
        group.bench_with_input(BenchmarkId::new("plan, encode and write", size), &state, |bencher, state| {
            let fresh = || empty(size);
            bencher.iter_batched_ref(
                fresh,
                |to| write(state, everything(state), to),
                BatchSize::PerIteration,
            );
        });
    }
}

fn one(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one endpoint");
    for size in SIZES {
        let mut state = state(size);
        let mut written = empty(size);
        write(&state, everything(&state), &mut written);
        let mut version = 0;
        group.bench_function(BenchmarkId::new("apply, plan, encode and write", size), |bencher| {
            bencher.iter(|| {
                version += 1;
                let changed = Change::Slice(slice(version * 7 % size, 1 + version % 2));
                let dirty = state.apply(changed);
                black_box(write(&state, dirty.services.into_iter(), &mut written))
            });
        });
    }
}

fn nothing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("nothing to do");
    group.sample_size(10);
    for size in SIZES {
        let state = state(size);
        let mut written = empty(size);
        write(&state, everything(&state), &mut written);
        group.bench_function(BenchmarkId::new("plan and compare", size), |bencher| {
            bencher.iter(|| assert_eq!(write(&state, everything(&state), &mut written), 0));
        });
        group.bench_function(BenchmarkId::new("full sync", size), |bencher| {
            let (maps, reconciler) = &mut written;
            bencher.iter(|| reconciler.full_sync(maps).expect("memory can be read").total());
        });
    }
}

criterion_group!(benches, full, one, nothing);
criterion_main!(benches);

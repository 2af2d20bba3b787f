//! Properties of the way from changes to plans: the order of events does not matter,
//! planning only what is dirty is enough, and no plan leads where policy forbids.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use proptest::{prelude::*, sample::Index};
use proxy_common::maps::frontends::{ClientClass, ClientRule, Kind};
use proxy_userspace::{
    model::{
        AddressType, Algorithm, Balancing, Change, Conditions, Config, DetectLocal, Dirty, Endpoint,
        EndpointSlice, Family, Hints, Ingress, IpMode, Mode, Node, ObjectName, Protocol, Service,
        ServicePort, ServiceType, SlicePort, State, TrafficPolicy, WeightKey, Weights,
    },
    plan::{self, PortPlan},
};

const HERE: &str = "here";
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![Just(TrafficPolicy::Cluster), Just(TrafficPolicy::Local)]
}

fn addresses(prefix: [u8; 3], range: std::ops::Range<u8>) -> impl Strategy<Value = Box<[IpAddr]>> {
    let [a, b, c] = prefix;
    let addr = range.prop_map(move |d| IpAddr::from([a, b, c, d]));
    prop::collection::vec(addr, 0..2).prop_map(Vec::into)
}

fn port() -> impl Strategy<Value = ServicePort> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    ("p[12]", protocol, 80u16..82, prop::option::of(30080u16..30082)).prop_map(
        |(name, protocol, port, node_port)| ServicePort { name: name.into(), protocol, port, node_port },
    )
}

fn kind() -> impl Strategy<Value = ServiceType> {
    prop_oneof![
        4 => Just(ServiceType::ClusterIp),
        2 => Just(ServiceType::NodePort),
        2 => Just(ServiceType::LoadBalancer),
        1 => Just(ServiceType::ExternalName),
    ]
}

fn weights() -> impl Strategy<Value = Weights> {
    let key = prop_oneof![
        (1u8..6).prop_map(|last| WeightKey::Address([10, 0, 0, last].into())),
        prop::sample::select(&[HERE, "there"][..]).prop_map(|node| WeightKey::Node(node.into())),
    ];
    prop::collection::btree_map(key, 0u16..4, 0..4).prop_map(|map| Weights::new(Vec::from_iter(map)))
}

fn balancing() -> impl Strategy<Value = Balancing> {
    let mode = prop::sample::select(&[Mode::Snat, Mode::Dsr, Mode::Hybrid][..]);
    let algorithm = prop::sample::select(&[Algorithm::Random, Algorithm::Maglev][..]);
    (prop::option::of(mode), prop::option::of(algorithm), weights())
        .prop_map(|(mode, algorithm, weights)| Balancing { mode, algorithm, weights })
}

/// Some hold the node's addresses, by which the host's own connections are judged.
fn source_ranges() -> impl Strategy<Value = Box<[IpNet]>> {
    let range = prop::sample::select(&["192.168.0.2/32", "203.0.113.0/24", "fd00:1::/32"][..]);
    let ranges = prop::collection::btree_set(range, 1..3);
    let parse = |range: &str| range.parse().expect("a range");
    prop::option::weighted(0.5, ranges).prop_map(move |list| list.into_iter().flatten().map(parse).collect())
}

/// Services that often want the same addresses.
fn service() -> impl Strategy<Value = Service> {
    let identity = (prop::sample::select(&NAMES[..]), 0i64..3, kind(), prop::bool::weighted(0.1));
    let v6 = prop::option::of(Just(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1])));
    let faces = (
        (1u8..4).prop_map(|last| IpAddr::from([172, 30, 0, last])),
        v6,
        addresses([192, 0, 2], 1..3),
        addresses([198, 51, 100], 1..3),
        prop::collection::vec(port(), 1..3),
    );
    let limits = (source_ranges(), prop::option::weighted(0.2, 1u32..3));
    (identity, faces, policy(), policy(), prop::bool::weighted(0.2), balancing(), limits).prop_map(
        |(
            (name, created, kind, other_proxy),
            (v4, v6, external_ips, vips, ports),
            internal,
            external,
            proxied,
            balancing,
            (source_ranges, affinity_secs),
        )| {
            let mode = if proxied { IpMode::Proxy } else { IpMode::Vip };
            Service {
                name: ObjectName::new("ns", name),
                uid: "".into(),
                created,
                kind,
                other_proxy,
                headless: false,
                cluster_ips: [v4].into_iter().chain(v6).collect(),
                ip_families: [].into(),
                external_ips,
                ingress: vips.iter().map(|ip| Ingress { ip: Some(*ip), mode }).collect(),
                ports: ports.into(),
                internal_policy: internal,
                external_policy: external,
                affinity_secs,
                source_ranges,
                health_check_node_port: None,
                balancing,
            }
        },
    )
}

fn endpoint(family: Family) -> impl Strategy<Value = Endpoint> {
    let conditions = (any::<Option<bool>>(), any::<Option<bool>>(), any::<Option<bool>>());
    let hint = prop::option::of(prop::sample::select(&["z1", "z2"][..]));
    (1u8..6, conditions, any::<bool>(), hint).prop_map(
        move |(last, (ready, serving, terminating), local, zone)| {
            let hints = zone.map(|zone| Box::new(Hints { zones: [zone.into()].into(), nodes: [].into() }));
            Endpoint {
                addr: match family {
                    Family::V4 => [10, 0, 0, last].into(),
                    Family::V6 => [0xfd00, 0x10, 0, 0, 0, 0, 0, last.into()].into(),
                },
                conditions: Conditions::new(ready, serving, terminating),
                node: Some(if local { HERE } else { "there" }.into()),
                pod: None,
                zone: None,
                hints,
            }
        },
    )
}

fn slice() -> impl Strategy<Value = EndpointSlice> {
    let names = (0u8..4, prop::sample::select(&NAMES[..]));
    let ports = prop::collection::vec(port(), 1..3);
    let weights = prop::option::weighted(0.2, weights());
    let endpoints = prop_oneof![
        4 => prop::collection::vec(endpoint(Family::V4), 0..5).prop_map(|list| (Family::V4, list)),
        1 => prop::collection::vec(endpoint(Family::V6), 0..5).prop_map(|list| (Family::V6, list)),
    ];
    (names, prop::bool::weighted(0.1), ports, endpoints, weights).prop_map(
        |((number, service), hidden, ports, (family, endpoints), weights)| EndpointSlice {
            name: ObjectName::new("ns", format!("slice-{number}")),
            service: service.into(),
            address_type: AddressType::Ip(family),
            hidden,
            ports: ports
                .into_iter()
                .map(|port| SlicePort {
                    name: port.name,
                    protocol: port.protocol,
                    port: Some(port.port + 8000),
                })
                .collect(),
            weights,
            endpoints: endpoints.into(),
        },
    )
}

fn node() -> impl Strategy<Value = Node> {
    let zone = prop::option::of(prop::sample::select(&["z1", "z2"][..]));
    let address = prop::sample::select(&["192.168.0.2", "192.168.0.3", "fd00:1::2", "fd00:2::2"][..]);
    let addresses = prop::collection::vec(address, 0..3);
    (zone, any::<bool>(), addresses).prop_map(|(zone, ranged, addresses)| Node {
        name: HERE.into(),
        addresses: addresses.into_iter().map(|address| address.parse().expect("an address")).collect(),
        zone: zone.map(Into::into),
        pod_cidrs: ranged.then(|| "10.0.0.0/24".parse().expect("a range")).into_iter().collect(),
        ..Node::default()
    })
}

fn change() -> impl Strategy<Value = Change> {
    let name = || prop::sample::select(&NAMES[..]).prop_map(|name| ObjectName::new("ns", name));
    prop_oneof![
        6 => service().prop_map(Change::Service),
        6 => slice().prop_map(Change::Slice),
        2 => name().prop_map(Change::ServiceGone),
        2 => (0u8..4).prop_map(|n| Change::SliceGone(ObjectName::new("ns", format!("slice-{n}")))),
        2 => node().prop_map(Change::Node),
        1 => Just(Change::NodeGone(HERE.into())),
        1 => prop::collection::vec(slice(), 0..3).prop_map(Change::SliceList),
        1 => prop::collection::vec(service(), 0..3).prop_map(Change::ServiceList),
    ]
}

fn config() -> Config {
    Config { detect_local: DetectLocal::NodeCidr, ..Config::default() }
}

fn plans(state: &State) -> BTreeMap<ObjectName, Vec<PortPlan>> {
    let names = state.services().map(|service| service.name.clone());
    names.map(|name| (name.clone(), plan::build(state, &name, &config()))).collect()
}

/// The last change to each object: what is left of a history when nothing but the end counts.
fn last_changes(changes: &[Change]) -> Vec<Change> {
    let mut state = State::new(HERE);
    let mut slices: BTreeMap<ObjectName, EndpointSlice> = BTreeMap::new();
    for change in changes {
        match change {
            Change::Slice(slice) => drop(slices.insert(slice.name.clone(), slice.clone())),
            Change::SliceGone(name) => drop(slices.remove(name)),
            Change::SliceList(list) => {
                slices = list.iter().map(|slice| (slice.name.clone(), slice.clone())).collect();
            }
            _ => {}
        }
        state.apply(change.clone());
    }
    let services = state.services().cloned().map(Change::Service);
    let node = state.node().cloned().map(Change::Node);
    services.chain(slices.into_values().map(Change::Slice)).chain(node).collect()
}

fn shuffled(mut changes: Vec<Change>, picks: &[Index]) -> Vec<Change> {
    let picked = picks.iter().map_while(|pick| {
        let left = changes.len();
        (left > 0).then(|| changes.swap_remove(pick.index(left)))
    });
    let mut order: Vec<_> = picked.collect();
    order.extend(changes);
    order
}

fn applied(changes: Vec<Change>) -> State {
    let mut state = State::new(HERE);
    for change in changes {
        state.apply(change);
    }
    state
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_events_gives_the_same_plan(
        changes in prop::collection::vec(change(), 1..30),
        picks in prop::collection::vec(any::<Index>(), 12),
    ) {
        let expected = plans(&applied(changes.clone()));
        let order = shuffled(last_changes(&changes), &picks);
        prop_assert_eq!(plans(&applied(order)), expected);
    }

    #[test]
    fn planning_what_is_dirty_is_enough(changes in prop::collection::vec(change(), 1..30)) {
        let mut state = State::new(HERE);
        let mut incremental: BTreeMap<ObjectName, Vec<PortPlan>> = BTreeMap::new();
        for change in changes {
            let Dirty { services, .. } = state.apply(change);
            for name in services {
                match state.service(&name) {
                    Some(_) => drop(incremental.insert(name.clone(), plan::build(&state, &name, &config()))),
                    None => drop(incremental.remove(&name)),
                }
            }
            prop_assert_eq!(&incremental, &plans(&state));
        }
    }

    /// The frontends of all services together are what one table can hold.
    #[test]
    fn no_address_is_planned_twice(changes in prop::collection::vec(change(), 1..30)) {
        let mut seen = BTreeSet::new();
        for plan in plans(&applied(changes)).values().flatten() {
            for row in &plan.frontends {
                prop_assert!(seen.insert((plan.family, row.addr, row.port, row.proto)), "{row:?} twice");
            }
        }
    }

    #[test]
    fn no_plan_leads_where_policy_forbids(
        service in service(),
        slices in prop::collection::vec(slice(), 0..4),
        node in node(),
    ) {
        let state = applied(
            [Change::Service(service.clone()), Change::Node(node)]
                .into_iter()
                .chain(slices.iter().cloned().map(Change::Slice))
                .collect(),
        );
        for plan in plans(&state).values().flatten() {
            check_backends(&service, &slices, plan)?;
            check_rules(&service, plan)?;
        }
    }
}

/// Of the records of one address those that count: of such as do not terminate, or else of all, the readiest.
fn counting(mut records: Vec<&Endpoint>) -> Vec<&Endpoint> {
    let wishes: [fn(&Endpoint) -> bool; 3] = [
        |endpoint| !endpoint.conditions.terminating,
        |endpoint| endpoint.conditions.ready,
        |endpoint| endpoint.conditions.serving,
    ];
    for wish in wishes {
        if records.iter().any(|endpoint| wish(endpoint)) {
            records.retain(|endpoint| wish(endpoint));
        }
    }
    records
}

/// Every endpoint behind a service port, by address; a slice of a name given twice is the last.
fn endpoints<'a>(
    slices: &'a [EndpointSlice],
    service: &Service,
    plan: &PortPlan,
) -> BTreeMap<SocketAddr, Vec<&'a Endpoint>> {
    let last: BTreeMap<_, _> = slices.iter().map(|slice| (&slice.name, slice)).collect();
    let mut endpoints: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for slice in last.into_values().filter(|slice| !slice.hidden && slice.service == service.name.name) {
        for port in &slice.ports {
            let is_of_plan = slice.address_type == AddressType::Ip(plan.family);
            if port.name == plan.name.port && port.protocol == plan.protocol && is_of_plan {
                for endpoint in &slice.endpoints {
                    let addr = (endpoint.addr, port.port.expect("tests give numbers")).into();
                    endpoints.entry(addr).or_default().push(endpoint);
                }
            }
        }
    }
    endpoints.into_iter().map(|(addr, records)| (addr, counting(records))).collect()
}

fn check_backends(service: &Service, slices: &[EndpointSlice], plan: &PortPlan) -> Result<(), TestCaseError> {
    let known = endpoints(slices, service, plan);
    let is = |addr: &SocketAddr, what: fn(&Endpoint) -> bool| {
        known.get(addr).is_some_and(|endpoints| endpoints.iter().any(|endpoint| what(endpoint)))
    };
    let here = |endpoint: &Endpoint| endpoint.node.as_deref() == Some(HERE);
    let answers = |endpoint: &Endpoint| endpoint.conditions.ready || endpoint.conditions.serving;
    let (cluster, local) = (&plan.cluster.backends, &plan.local.backends);
    for row in cluster.iter().chain(local).chain(&plan.lingering).chain(&plan.returning) {
        prop_assert!(is(&row.addr, answers), "{row:?} does not answer");
        prop_assert_eq!(row.local, is(&row.addr, here));
    }
    prop_assert!(local.iter().chain(&plan.returning).all(|row| row.local));
    prop_assert!(cluster.is_sorted() && local.is_sorted());
    for list in [cluster, local] {
        let ready = list.iter().filter(|row| is(&row.addr, |endpoint| endpoint.conditions.ready)).count();
        prop_assert!(ready == 0 || ready == list.len(), "draining endpoints beside ready ones");
    }
    Ok(())
}

fn check_rules(service: &Service, plan: &PortPlan) -> Result<(), TestCaseError> {
    for row in plan.frontends.iter().filter(|row| row.kind != Kind::ADDRESS) {
        let policy = match row.kind {
            Kind::CLUSTER_IP => service.internal_policy,
            _ => service.external_policy,
        };
        let external = row.rules.of(ClientClass::External);
        let expected =
            policy == TrafficPolicy::Local && (row.kind == Kind::CLUSTER_IP || service.is_external());
        prop_assert_eq!(external.has(ClientRule::LOCAL), expected, "{:?}", row);
        prop_assert!(
            !external.has(ClientRule::DSR) || (row.hashed && external.0 == ClientRule::DSR),
            "{row:?}"
        );
        if expected && row.kind != Kind::CLUSTER_IP {
            prop_assert!(!external.has(ClientRule::SNAT), "policy Local hides the client: {row:?}");
        }
    }
    Ok(())
}

use super::*;
use crate::model::{AddressType, Conditions, Endpoint, Hints, Protocol, SlicePort, service::tests::service};

fn slice(name: &str, service: &str, addrs: &[[u8; 4]]) -> EndpointSlice {
    let endpoint = |addr: &[u8; 4]| Endpoint {
        addr: (*addr).into(),
        conditions: Conditions::new(None, None, None),
        node: None,
        pod: None,
        zone: None,
        hints: None,
    };
    EndpointSlice {
        name: ObjectName::new("ns", name),
        service: service.into(),
        address_type: AddressType::Ip(Family::V4),
        hidden: false,
        ports: [SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: Some(8080) }].into(),
        weights: None,
        endpoints: addrs.iter().map(endpoint).collect(),
    }
}

fn node(zone: &str, pod_cidrs: &[&str]) -> Node {
    Node {
        name: "here".into(),
        addresses: [[192, 168, 0, 2].into()].into(),
        zone: Some(zone.into()),
        pod_cidrs: pod_cidrs.iter().map(|net| net.parse().expect("a range")).collect(),
        ..Node::default()
    }
}

fn dirty(dirty: Dirty) -> Vec<String> {
    dirty.services.iter().map(|name| name.name.to_string()).collect()
}

fn backends(state: &State, name: &str) -> Vec<String> {
    let service = state.service(&ObjectName::new("ns", name)).expect("the service");
    let candidates = state.candidates(&service.name, &service.ports[0], Family::V4);
    candidates.iter().map(|candidate| candidate.addr.to_string()).collect()
}

#[test]
fn a_change_dirties_what_it_touches() {
    let mut state = State::new("here");
    assert_eq!(dirty(state.apply(Change::Slice(slice("s", "web", &[[10, 0, 0, 1]])))), [""; 0]);
    assert_eq!(dirty(state.apply(Change::Service(service("web")))), ["web"]);
    assert_eq!(dirty(state.apply(Change::Service(service("web")))), [""; 0]);
    assert_eq!(dirty(state.apply(Change::Slice(slice("s", "web", &[[10, 0, 0, 1]])))), [""; 0]);
    assert_eq!(dirty(state.apply(Change::Slice(slice("s", "web", &[[10, 0, 0, 2]])))), ["web"]);
    assert_eq!(backends(&state, "web"), ["10.0.0.2:8080"]);
    assert_eq!(dirty(state.apply(Change::SliceGone(ObjectName::new("ns", "s")))), ["web"]);
    assert_eq!(dirty(state.apply(Change::SliceGone(ObjectName::new("ns", "s")))), [""; 0]);
    assert_eq!(dirty(state.apply(Change::ServiceGone(ObjectName::new("ns", "web")))), ["web"]);
}

#[test]
fn a_slice_moves_to_another_service() {
    let mut state = State::new("here");
    let mut other = service("other");
    other.cluster_ips = [[172, 30, 0, 2].into()].into();
    state.apply(Change::ServiceList(vec![service("web"), other]));
    state.apply(Change::Slice(slice("s", "web", &[[10, 0, 0, 1]])));
    assert_eq!(dirty(state.apply(Change::Slice(slice("s", "other", &[[10, 0, 0, 1]])))), ["other", "web"]);
    assert!(backends(&state, "web").is_empty());
    assert_eq!(backends(&state, "other"), ["10.0.0.1:8080"]);
}

#[test]
fn only_slices_of_the_right_kind_count() {
    let mut state = State::new("here");
    state.apply(Change::Service(service("web")));
    let check = |state: &mut State, change: fn(&mut EndpointSlice)| {
        let mut slice = slice("s", "web", &[[10, 0, 0, 1]]);
        change(&mut slice);
        state.apply(Change::Slice(slice));
        assert!(backends(state, "web").is_empty());
    };
    check(&mut state, |slice| slice.hidden = true);
    check(&mut state, |slice| slice.address_type = AddressType::Fqdn);
    check(&mut state, |slice| slice.address_type = AddressType::Ip(Family::V6));
    check(&mut state, |slice| slice.ports[0].port = None);
    check(&mut state, |slice| slice.ports[0].name = "other".into());
    check(&mut state, |slice| slice.ports[0].protocol = Protocol::Udp);
}

#[test]
fn a_list_removes_what_it_does_not_name() {
    let mut state = State::new("here");
    state.apply(Change::Service(service("web")));
    state.apply(Change::Slice(slice("s", "web", &[[10, 0, 0, 1]])));
    assert_eq!(dirty(state.apply(Change::SliceList(vec![]))), ["web"]);
    assert_eq!(dirty(state.apply(Change::ServiceList(vec![]))), ["web"]);
    assert_eq!(state.services().count(), 0);
}

#[test]
fn the_oldest_service_has_an_address_and_its_heirs_follow() {
    let mut state = State::new("here");
    let aged = |name, created| Service { created, ..service(name) };
    let claim = service("a").faces()[1].claim;
    let holder = |state: &State| {
        ["a", "b", "c"].into_iter().find(|name| state.holds(&claim, &ObjectName::new("ns", *name)))
    };
    assert!(state.apply(Change::Service(aged("b", 5))).conflicts.is_empty());
    let second = state.apply(Change::Service(aged("a", 5)));
    assert_eq!(second.conflicts.len(), 2, "the address and its port");
    assert!(second.conflicts[1].to_string().ends_with("ns/a has it"));
    assert_eq!((holder(&state), dirty(second)), (Some("a"), vec!["a".into(), "b".into()]));
    state.apply(Change::Service(aged("c", 1)));
    assert_eq!((holder(&state), state.conflicts().count()), (Some("c"), 4));
    let gone = state.apply(Change::ServiceGone(ObjectName::new("ns", "c")));
    assert_eq!((holder(&state), dirty(gone)), (Some("a"), vec!["a".into(), "c".into()]));
    state.apply(Change::ServiceGone(ObjectName::new("ns", "b")));
    assert_eq!((holder(&state), state.conflicts().count()), (Some("a"), 0));
}

#[test]
fn a_holder_that_changes_otherwise_keeps_its_address() {
    let mut state = State::new("here");
    state.apply(Change::Service(service("a")));
    state.apply(Change::Service(service("b")));
    let changed = Service { affinity_secs: Some(10), ..service("a") };
    assert_eq!(dirty(state.apply(Change::Service(changed))), ["a"]);
}

#[test]
fn a_service_at_odds_with_itself_is_reported() {
    let mut twice = service("web");
    let mut port = twice.ports[0].clone();
    port.name = "again".into();
    twice.ports = [twice.ports[0].clone(), port].into();
    let conflicts = State::new("here").apply(Change::Service(twice)).conflicts;
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].winner, conflicts[0].loser);
}

#[test]
fn only_this_node_matters_and_only_where_it_does() {
    let mut state = State::new("here");
    let mut hinted = slice("h", "hinted", &[[10, 0, 0, 1]]);
    hinted.endpoints[0].hints = Some(Box::new(Hints { zones: ["a".into()].into(), nodes: [].into() }));
    let mut other = service("hinted");
    other.cluster_ips = [[172, 30, 0, 2].into()].into();
    let mut restricted = service("restricted");
    restricted.cluster_ips = [[172, 30, 0, 3].into()].into();
    restricted.source_ranges = ["192.168.0.0/24".parse().expect("a range")].into();
    state.apply(Change::ServiceList(vec![service("web"), other, restricted]));
    state.apply(Change::Slice(hinted));

    let elsewhere = Node { name: "elsewhere".into(), ..node("a", &[]) };
    assert!(state.apply(Change::Node(elsewhere)).is_empty());
    assert_eq!(dirty(state.apply(Change::Node(node("a", &[])))), ["hinted", "restricted"]);
    assert!(state.apply(Change::Node(node("a", &[]))).is_empty());
    let ranged = state.apply(Change::Node(node("a", &["10.0.0.0/24"])));
    assert!(ranged.node);
    assert_eq!(dirty(ranged), ["hinted", "restricted", "web"]);
    assert_eq!(dirty(state.apply(Change::Node(node("b", &["10.0.1.0/24"])))), ["hinted"]);
    let moved = Node { addresses: [[192, 168, 0, 3].into()].into(), ..node("b", &["10.0.1.0/24"]) };
    assert_eq!(dirty(state.apply(Change::Node(moved))), ["restricted"]);
    assert!(state.apply(Change::NodeGone("elsewhere".into())).is_empty());
    assert!(state.apply(Change::NodeGone("here".into())).node);
}

#[test]
fn service_ranges_are_sorted_and_unique() {
    let mut state = State::new("here");
    let cidr = |name: &str, ranges: &[&str]| ServiceCidr {
        name: name.into(),
        ranges: ranges.iter().map(|net| net.parse().expect("a range")).collect(),
    };
    assert!(state.apply(Change::ServiceCidr(cidr("b", &["172.30.0.1/16", "fd00::/112"]))).node);
    assert!(state.apply(Change::ServiceCidr(cidr("a", &["172.30.0.0/16"]))).node);
    assert!(!state.apply(Change::ServiceCidr(cidr("a", &["172.30.0.0/16"]))).node);
    let ranges: Vec<_> = state.service_cidrs().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["172.30.0.0/16", "fd00::/112"]);
    assert!(state.apply(Change::ServiceCidrGone("a".into())).node);
    assert!(state.apply(Change::ServiceCidrList(vec![])).node);
    assert_eq!(state.service_cidrs(), Some(vec![]));
}

#[test]
fn what_is_unknown_is_not_nothing() {
    let mut state = State::new("here");
    assert!(
        state.set_unknown(Unknown::default()).is_empty(),
        "a source that says nothing of it tells everything"
    );
    let cidrs = Unknown { service_cidrs: true, ..Unknown::default() };
    assert!(state.set_unknown(cidrs).node && state.service_cidrs().is_none());
    let pods = state.set_unknown(Unknown { pods: true, ..cidrs });
    assert!(pods.pods && !pods.node && state.exempt_pods().is_none());
    let namespaces = state.set_unknown(Unknown { namespaces: true, ..cidrs });
    assert!(namespaces.pods && state.exempt_pods() == Some(Exempt::default()));
    assert!(state.set_unknown(Unknown::default()).node && state.service_cidrs() == Some(vec![]));
}

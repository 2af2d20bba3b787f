//! From manifests to rows in memory, and what is left when writes fail.

use std::time::Duration;

use super::*;
use crate::{
    dataplane::{Fault, MemoryMaps},
    model::Change,
    watch::manifests::{self, Format},
};

const NODE: &str = "
apiVersion: v1
kind: Node
metadata: {name: here}
status: {addresses: [{type: InternalIP, address: 192.168.0.2}]}
";

fn service(name: &str, last_octet: u8) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{clusterIP: 10.96.0.{last_octet}, ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{{addresses: [10.0.0.{last_octet}]}}]
"
    )
}

fn changes(yaml: &str) -> Vec<Change> {
    let found = manifests::parse(yaml, Format::Yaml).unwrap();
    found.into_iter().map(|f| f.change.unwrap()).collect()
}

fn engine(maps: &mut MemoryMaps) -> Engine {
    let host = plan::Host {
        netns_cookie: 1,
        addresses: vec!["192.168.0.2".parse().unwrap()],
        ..plan::Host::default()
    };
    let reconciler = Reconciler::adopt(maps).unwrap();
    Engine::new("here".into(), model::Config::default(), host, reconciler)
}

fn initial(yaml: &str) -> Batch {
    Batch::new(changes(yaml), true, 1)
}

fn later(changes: Vec<Change>) -> Batch {
    Batch::new(changes, false, 2)
}

/// Cluster addresses that have a frontend with a port.
fn served(maps: &MemoryMaps) -> Vec<u8> {
    maps.v4.frontends.keys().filter(|key| key.port == 80).map(|key| key.addr.octets[3]).collect()
}

#[test]
fn a_restart_writes_nothing_and_what_is_gone_meanwhile_goes() {
    let mut maps = MemoryMaps::new(64);
    let mut first = engine(&mut maps);
    first.absorb(initial(&(NODE.to_owned() + &service("a", 1) + &service("b", 2))));
    let synced = first.sync(&mut maps);
    assert!(synced.rows > 0 && synced.pending == 0, "{synced:?}");
    assert_eq!(served(&maps), [1, 2]);
    assert_eq!(first.sync(&mut maps).rows, 0, "idempotent");

    let mut second = engine(&mut maps);
    second.absorb(initial(&(NODE.to_owned() + &service("a", 1) + &service("b", 2))));
    assert_eq!(second.sync(&mut maps), Synced::default());

    let mut third = engine(&mut maps);
    third.absorb(initial(&(NODE.to_owned() + &service("b", 2))));
    assert!(third.sync(&mut maps).rows > 0);
    assert_eq!(served(&maps), [2]);
}

#[test]
fn what_there_is_tells_how_many_rows_it_needs() {
    let mut maps = MemoryMaps::new(64);
    let mut engine = engine(&mut maps);
    let shared = service("a", 1) + &service("b", 2).replace("10.0.0.2", "10.0.0.1");
    engine.absorb(initial(&(NODE.to_owned() + &shared + &service("c", 3))));
    let slots = plan::Slots { all: 3, largest_table: 0 };
    let slots = [slots, plan::Slots::default()];
    let largest = plan::Largest { services: 1, frontends: 2, backends: 1, ..Default::default() };
    let expected = plan::Needs {
        services: 3,
        frontends: [6, 0],
        backends: [2, 0],
        slots,
        largest,
        ..Default::default()
    };
    assert_eq!(engine.needs(), expected);
    engine.sync(&mut maps);
    assert_eq!((maps.services.len(), maps.v4.frontends.len()), (3, 6));
    assert_eq!(engine.reconciler().counts(), (6, 2));
}

#[test]
fn first_lists_may_come_in_parts() {
    let mut maps = MemoryMaps::new(64);
    let mut engine = engine(&mut maps);
    let part = |changes| Batch::new(changes, false, 0);
    engine.absorb(part(changes(NODE)));
    engine.absorb(part(changes(&service("a", 1))));
    assert!(!engine.is_listed());
    engine.absorb(Batch::new(changes(&service("b", 2)), true, 1));
    assert!(engine.is_listed());
    engine.sync(&mut maps);
    assert_eq!(served(&maps), [1, 2]);
    assert_eq!(maps.v4.node_addresses.len(), 1);
}

#[test]
fn changes_are_written_and_failures_wait_for_the_next_round() {
    let mut maps = MemoryMaps::new(64);
    let mut engine = engine(&mut maps);
    engine.absorb(initial(NODE));
    engine.sync(&mut maps);
    maps.v4.faults.next = vec![Fault { after: 0, rows: 0 }; 2];
    engine.absorb(later(changes(&service("a", 1))));
    let failed = engine.sync(&mut maps);
    assert_eq!(failed.pending, 1);
    engine.report_failures(Duration::from_secs(1));
    assert!(served(&maps).is_empty());
    maps.v4.faults.next.clear();
    assert_eq!(engine.sync(&mut maps).pending, 0);
    assert_eq!(served(&maps), [1]);
    engine.absorb(later(vec![Change::ServiceGone(model::ObjectName::new("default", "a"))]));
    engine.sync(&mut maps);
    assert!(served(&maps).is_empty());
}

#[test]
fn what_others_change_is_repaired() {
    let mut maps = MemoryMaps::new(64);
    let mut engine = engine(&mut maps);
    engine.absorb(initial(&(NODE.to_owned() + &service("a", 1))));
    engine.sync(&mut maps);
    maps.v4.frontends.clear();
    maps.v4.node_addresses.clear();
    assert!(engine.full_sync(&mut maps).unwrap().total() >= 2);
    assert_eq!(served(&maps), [1]);
    assert_eq!(engine.full_sync(&mut maps).unwrap().total(), 0);
}

#[test]
fn addresses_of_the_host_are_followed_once_the_node_is_known() {
    let mut maps = MemoryMaps::new(64);
    let mut engine = engine(&mut maps);
    let addresses = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<_>>();
    assert!(!engine.set_host_addresses(addresses(&["192.168.0.2", "192.168.9.9"])), "not listed yet");
    engine.absorb(initial(NODE));
    assert_eq!(engine.node_addresses(), addresses(&["192.168.0.2"]));
    engine.sync(&mut maps);
    assert_eq!(maps.v4.node_addresses.len(), 2);
    assert!(engine.set_host_addresses(addresses(&["192.168.0.2"])));
    assert!(!engine.set_host_addresses(addresses(&["192.168.0.2"])), "unchanged");
    engine.sync(&mut maps);
    assert_eq!(maps.v4.node_addresses.len(), 1);
}

const BALANCED: &str = "---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.9
  externalTrafficPolicy: Local
  healthCheckNodePort: 32000
  ports: [{port: 80, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.0.0.9], nodeName: here}, {addresses: [10.0.0.10], nodeName: there}]
";

#[test]
fn health_ports_follow_services_endpoints_and_addresses() {
    let mut maps = MemoryMaps::new(64);
    let mut engine = engine(&mut maps);
    assert!(engine.health_ports().is_none());
    engine.absorb(initial(&(NODE.to_owned() + BALANCED)));
    let ports = engine.health_ports().unwrap();
    assert_eq!(ports.owners[&32_000].endpoints, [Some(1), None]);
    assert_eq!(ports.listens.len(), 1);
    assert!(engine.health_ports().is_none(), "nothing has changed");
    assert!(engine.set_host_addresses(Vec::new()));
    assert!(engine.health_ports().unwrap().listens.is_empty());
    engine.absorb(later(vec![Change::SliceGone(model::ObjectName::new("default", "web-1"))]));
    assert_eq!(engine.health_ports().unwrap().owners[&32_000].endpoints, [Some(0), None]);
    engine.absorb(later(vec![Change::ServiceGone(model::ObjectName::new("default", "web"))]));
    assert_eq!(engine.health_ports().unwrap(), health::Ports::default());
}

#[test]
fn the_family_that_waits_is_known() {
    let mut maps = MemoryMaps::new(64);
    let mut engine = engine(&mut maps);
    engine.absorb(initial(NODE));
    engine.sync(&mut maps);
    let waiting = |engine: &Engine| Family::ALL.map(|family| engine.is_pending(family));
    maps.v4.faults.next = vec![Fault { after: 0, rows: 0 }; 2];
    engine.absorb(later(changes(&service("a", 1))));
    engine.sync(&mut maps);
    assert_eq!(waiting(&engine), [true, false]);
    maps.v4.faults.next.clear();
    engine.sync(&mut maps);
    assert_eq!(waiting(&engine), [false, false]);
}

#[test]
fn a_node_that_leaves_is_not_eligible() {
    let mut maps = MemoryMaps::new(64);
    let mut engine = engine(&mut maps);
    assert!(engine.node_is_eligible(), "nothing is known of it yet");
    engine.absorb(initial(NODE));
    assert!(engine.node_is_eligible());
    let leaving = NODE.replace("{name: here}", "{name: here, deletionTimestamp: '2030-01-01T00:00:00Z'}");
    engine.absorb(later(changes(&leaving)));
    assert!(!engine.node_is_eligible());
    engine.absorb(later(changes(NODE)));
    assert!(engine.node_is_eligible());
    engine.absorb(later(vec![Change::NodeGone("here".into())]));
    assert!(!engine.node_is_eligible());
}

#[test]
fn a_machine_that_stands_alone_needs_no_node() {
    let mut maps = MemoryMaps::new(64);
    let mut alone = engine(&mut maps).stand_alone();
    alone.absorb(initial(&service("a", 1)));
    assert!(alone.node_is_eligible());
    alone.absorb(later(changes(NODE)));
    alone.absorb(later(vec![Change::NodeGone("here".into())]));
    assert!(!alone.node_is_eligible(), "there was one");
    let mut of_cluster = engine(&mut maps);
    of_cluster.absorb(initial(&service("a", 1)));
    assert!(!of_cluster.node_is_eligible());
}

const RANGE: &str = "---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: all}
spec: {cidrs: [10.96.0.0/16]}
";

const POD: &str = "---
apiVersion: v1
kind: Pod
metadata: {name: proxied, uid: proxied, labels: {shunt.dev/socket-lb: disabled}}
";

/// A right that comes a moment after the agent must not cost a node what an earlier agent knew.
#[test]
fn what_is_unknown_stays_as_an_earlier_agent_left_it() {
    let ranges = |maps: &MemoryMaps| (maps.v4.service_cidrs.len(), maps.settings.service_range_bits_v4);
    let unknown = model::Unknown { service_cidrs: true, pods: true, namespaces: true };
    let mut maps = MemoryMaps::new(64);
    let mut earlier = engine(&mut maps);
    earlier.absorb(initial(&(NODE.to_owned() + RANGE + POD)));
    earlier.sync(&mut maps);
    assert_eq!(ranges(&maps), (1, 16));
    assert_eq!(earlier.take_exempt_pods().unwrap().pods.len(), 1);

    let mut engine = engine(&mut maps);
    engine.absorb(Batch { unknown, ..initial(&(NODE.to_owned() + &service("a", 1))) });
    engine.sync(&mut maps);
    assert_eq!((served(&maps), ranges(&maps)), (vec![1], (1, 16)));
    assert!(engine.take_exempt_pods().is_none());
    assert_eq!(engine.full_sync(&mut maps).unwrap().total(), 0);
    assert_eq!(ranges(&maps), (1, 16));

    engine.absorb(later(vec![]));
    engine.sync(&mut maps);
    assert_eq!(ranges(&maps), (0, 0));
    assert_eq!(engine.take_exempt_pods(), Some(Exempt::default()));
}

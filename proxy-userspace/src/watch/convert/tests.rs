//! Tables of manifests and what becomes of them.

use super::{super::manifests, *};
use crate::model::{
    AddressType, Algorithm, Balancing, EndpointSlice, Family, IpMode, Mode, Node, Protocol, Service,
    ServiceType, TrafficPolicy, WeightKey, Weights,
};

/// The one object of a manifest.
fn found(yaml: &str) -> Found {
    let mut found = manifests::parse(yaml, manifests::Format::Yaml).unwrap();
    assert_eq!(found.len(), 1, "{yaml}");
    found.remove(0)
}

fn convert(yaml: &str) -> Result<Change, Rejected> {
    found(yaml).change
}

/// What of an object counts for nothing, and what it says without that.
fn ignored(yaml: &str) -> (Vec<String>, Change) {
    let found = found(yaml);
    let change = found.change.unwrap_or_else(|reason| panic!("{yaml}: {reason}"));
    (found.ignored.iter().map(ToString::to_string).collect(), change)
}

/// A service whose `spec` is a ClusterIP with port 80, overlaid by `fields`.
fn service_yaml(fields: &str) -> String {
    let mut lines = vec!["clusterIP: 10.96.0.1", "ports: [{port: 80}]"];
    let key = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    lines.retain(|line| !fields.lines().any(|field| key(field) == key(line)));
    let spec = lines.into_iter().chain(fields.lines()).map(|l| format!("  {l}\n")).collect::<String>();
    format!("apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: ns}}\nspec:\n{spec}")
}

fn service(fields: &str) -> Service {
    match convert(&service_yaml(fields)) {
        Ok(Change::Service(service)) => service,
        other => panic!("{fields}: {other:?}"),
    }
}

fn slice_yaml(fields: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-1\n  namespace: ns\n  \
         labels: {{kubernetes.io/service-name: web}}\n{fields}\n"
    )
}

fn slice(fields: &str) -> EndpointSlice {
    match convert(&slice_yaml(fields)) {
        Ok(Change::Slice(slice)) => slice,
        other => panic!("{fields}: {other:?}"),
    }
}

#[test]
fn a_plain_service() {
    let service = service("");
    assert_eq!(service.name, ObjectName::new("ns", "web"));
    assert_eq!((service.kind, service.headless, service.other_proxy), (ServiceType::ClusterIp, false, false));
    assert_eq!(service.cluster_ips[..], ["10.96.0.1".parse::<std::net::IpAddr>().unwrap()]);
    let port = &service.ports[0];
    assert_eq!((&*port.name, port.protocol, port.port, port.node_port), ("", Protocol::Tcp, 80, None));
    assert_eq!(service.affinity_secs, None);
}

#[test]
fn everything_a_service_can_say() {
    let text = service_yaml(
        "type: LoadBalancer
clusterIPs: [172.30.0.041, 'fd00:96::1']
ipFamilies: [IPv4, IPv6]
externalIPs: [192.168.099.022]
loadBalancerSourceRanges: [203.0.113.000/025, ' 10.0.0.0/8']
internalTrafficPolicy: Local
externalTrafficPolicy: Local
healthCheckNodePort: 32000
sessionAffinity: ClientIP
ports: [{name: a, protocol: UDP, port: 53, nodePort: 30053}, {name: a, port: 53, nodePort: 30053}]",
    ) + "status: {loadBalancer: {ingress: [{ip: 198.51.100.010, ipMode: Proxy}, {hostname: lb.example.org}]}}\n";
    let Ok(Change::Service(service)) = convert(&text) else { panic!("{:?}", convert(&text)) };
    let text = |ips: &[std::net::IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(text(&service.cluster_ips), "172.30.0.41 fd00:96::1");
    assert_eq!(text(&service.external_ips), "192.168.99.22");
    assert_eq!(service.ip_families[..], [Family::V4, Family::V6]);
    assert_eq!(service.source_ranges[..], ["203.0.113.0/25", "10.0.0.0/8"].map(|n| n.parse().unwrap()));
    assert_eq!(
        (service.internal_policy, service.external_policy),
        (TrafficPolicy::Local, TrafficPolicy::Local)
    );
    assert_eq!((service.affinity_secs, service.health_check_node_port), (Some(10_800), Some(32_000)));
    assert_eq!(service.ingress[0].ip, Some("198.51.100.10".parse().unwrap()));
    assert_eq!((service.ingress[0].mode, service.ingress[1].ip), (IpMode::Proxy, None));
    assert_eq!(service.ports.len(), 2, "one number and name under two protocols");
}

/// A service with annotations, and what of them was ignored.
fn annotated(annotations: &str) -> (Service, Vec<String>) {
    let text =
        service_yaml("").replace("namespace: ns", &format!("namespace: ns, annotations: {{{annotations}}}"));
    let found = manifests::parse(&text, manifests::Format::Yaml).unwrap().remove(0);
    let Ok(Change::Service(service)) = found.change else { panic!("{text}: {:?}", found.change) };
    (service, found.ignored.iter().map(ToString::to_string).collect())
}

#[test]
fn annotations_of_the_load_balancer() {
    let (service, ignored) = annotated(
        "shunt.dev/load-balancer-mode: hybrid, shunt.dev/algorithm: ' maglev', \
         shunt.dev/weights: 'fd00::1=0, 10.0.0.1=1000,pod:web-0=3,node:n1 = 4 ,zone:za=5,'",
    );
    assert_eq!(ignored, [""; 0]);
    let Balancing { mode, algorithm, weights } = service.balancing;
    assert_eq!((mode, algorithm), (Some(Mode::Hybrid), Some(Algorithm::Maglev)));
    let expected = [
        (WeightKey::Address("10.0.0.1".parse().unwrap()), 1000),
        (WeightKey::Address("fd00::1".parse().unwrap()), 0),
        (WeightKey::Pod("web-0".into()), 3),
        (WeightKey::Node("n1".into()), 4),
        (WeightKey::Zone("za".into()), 5),
    ];
    assert_eq!(weights, Weights::new(expected.into()));
}

#[test]
fn annotations_that_make_no_sense_count_for_nothing() {
    let not_a_weight = |entry: &str| {
        format!(
            "metadata.annotations[shunt.dev/weights]: {entry:?} is not KEY=WEIGHT, with an address, pod:NAME, \
             node:NAME or zone:NAME, and a weight of 0 to 1000"
        )
    };
    let check = |annotations: &str, expected: &str| {
        let (service, ignored) = annotated(annotations);
        assert_eq!(ignored, [expected], "{annotations}");
        assert_eq!(service.balancing, Balancing::default());
    };
    check(
        "shunt.dev/load-balancer-mode: DSR",
        "metadata.annotations[shunt.dev/load-balancer-mode]: \"DSR\" is none of snat, dsr and hybrid",
    );
    check(
        "shunt.dev/algorithm: ''",
        "metadata.annotations[shunt.dev/algorithm]: \"\" is none of random and maglev",
    );
    for entry in ["10.0.0.1", "10.0.0.1=1001", "10.0.0.1=-1", "web-0=1", "pod:=1", "rack:a=1", "=1"] {
        check(&format!("shunt.dev/weights: '10.0.0.9=2,{entry}'"), &not_a_weight(entry));
    }
    check(
        "shunt.dev/weights: 'node:a=1,node:b=1,node:a=2'",
        "metadata.annotations[shunt.dev/weights]: node:a is used twice",
    );
    let (service, ignored) = annotated("shunt.dev/algorithm: best, shunt.dev/load-balancer-mode: dsr");
    assert_eq!((service.balancing.mode, ignored.len()), (Some(Mode::Dsr), 1));
}

#[test]
fn what_weights_go_by() {
    let text = slice_yaml(
        "addressType: IPv4
endpoints:
- {addresses: [10.0.0.1], zone: za, targetRef: {kind: Pod, name: web-0, namespace: ns}}
- {addresses: [10.0.0.2], targetRef: {kind: Node, name: n1}}",
    );
    let Ok(Change::Slice(plain)) = convert(&text) else { panic!("{text}") };
    let names = |i: usize| (plain.endpoints[i].pod.as_deref(), plain.endpoints[i].zone.as_deref());
    assert_eq!((names(0), names(1)), ((Some("web-0"), Some("za")), (None, None)));
    assert_eq!(plain.weights, None);
    for (weights, expected, ignored) in
        [("'pod:web-0=3'", Some(Weights::new(vec![(WeightKey::Pod("web-0".into()), 3)])), 0), ("x", None, 1)]
    {
        let text =
            text.replace("  labels:", &format!("  annotations: {{shunt.dev/weights: {weights}}}\n  labels:"));
        let found = manifests::parse(&text, manifests::Format::Yaml).unwrap().remove(0);
        let Ok(Change::Slice(slice)) = found.change else { panic!("{text}") };
        assert_eq!((slice.weights, found.ignored.len()), (expected, ignored));
    }
}

#[test]
fn services_that_are_not_served_still_convert() {
    let headless = service("clusterIP: None\nports: []");
    assert!(headless.headless && headless.cluster_ips.is_empty());
    assert_eq!(service("type: ExternalName\nports: []").kind, ServiceType::ExternalName);
    let labelled = service_yaml("")
        .replace("namespace: ns", "namespace: ns, labels: {service.kubernetes.io/service-proxy-name: ''}");
    let Ok(Change::Service(labelled)) = convert(&labelled) else { panic!() };
    assert!(labelled.other_proxy, "any value of the label counts");
}

#[test]
fn bad_services_are_refused_with_the_field() {
    for (fields, expected) in [
        ("ports: []", "spec.ports is empty"),
        ("ports: [{port: 0}]", "spec.ports[0].port: 0 is not a port number"),
        ("ports: [{port: 65536}]", "spec.ports[0].port: 65536 is not a port number"),
        ("ports: [{port: 80, nodePort: -1}]", "spec.ports[0].nodePort: -1 is not a port number"),
        (
            "ports: [{port: 80, protocol: ICMP}]",
            "spec.ports[0].protocol: \"ICMP\" is none of TCP, UDP and SCTP",
        ),
        ("ports: [{port: many}]", "spec.ports[0].port: invalid type: string \"many\", expected i32"),
        ("clusterIP: 10.96.0", "spec.clusterIP[0]: \"10.96.0\" is not an IP address"),
        ("clusterIPs: [x, y]", "spec.clusterIPs[0]: \"x\" is not an IP address"),
        (
            "loadBalancerSourceRanges: [10.0.0.1]",
            "spec.loadBalancerSourceRanges[0]: \"10.0.0.1\" is not a CIDR",
        ),
        // Without a range of its family, IPv4 would be open to everybody.
        (
            "loadBalancerSourceRanges: ['fd00::/8', 10.0.0.1]",
            "spec.loadBalancerSourceRanges[1]: \"10.0.0.1\" is not a CIDR",
        ),
        ("type: Magic", "spec.type: \"Magic\" is none of ClusterIP, NodePort, LoadBalancer and ExternalName"),
        ("externalTrafficPolicy: Far", "spec.externalTrafficPolicy: \"Far\" is none of Cluster and Local"),
        (
            "sessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}",
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: 0 is not in 1..=86400",
        ),
    ] {
        assert_eq!(convert(&service_yaml(fields)).unwrap_err().to_string(), expected, "{fields}");
    }
    let nameless = service_yaml("").replace("name: web, ", "");
    assert_eq!(convert(&nameless), Err(Rejected::NoName));
    assert_eq!(convert("{apiVersion: v1, kind: Service, metadata: {name: a}}"), Err(Rejected::NoSpec));
}

#[test]
fn bad_parts_of_a_service_count_for_nothing() {
    let text = service_yaml(
        "clusterIPs: [10.96.0.1, x]
externalIPs: [0.0.0.0, 192.0.2.1]
loadBalancerSourceRanges: [10.0.0.0/8]
healthCheckNodePort: 65536
ports: [{port: 80}, {port: 81}, {name: b, port: 80}, {name: c, port: 0}, {name: d, port: 83, nodePort: 30000},
  {name: e, port: 84, nodePort: 30000}]",
    ) + "status: {loadBalancer: {ingress: [{ip: 127.0.0.1}, {ip: 192.0.2.9, ipMode: Magic}, {ip: 192.0.2.2}]}}\n";
    let (ignored, change) = ignored(&text);
    let fields: Vec<_> = ignored.iter().filter_map(|reason| reason.split(": ").next()).collect();
    assert_eq!(
        fields,
        [
            "spec.clusterIPs[1]",
            "spec.externalIPs[0]",
            "status.loadBalancer.ingress[0].ip",
            "status.loadBalancer.ingress[1].ipMode",
            "spec.ports[3].port",
            "spec.ports[1].name",
            "spec.ports[2].port",
            "spec.ports[5].nodePort",
            "spec.healthCheckNodePort",
        ]
    );
    let Change::Service(service) = change else { panic!("{change:?}") };
    let text = |ips: &[std::net::IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(
        (text(&service.cluster_ips), text(&service.external_ips)),
        ("10.96.0.1".into(), "192.0.2.1".into())
    );
    assert_eq!(
        service.ingress.iter().map(|ingress| ingress.ip).collect::<Vec<_>>(),
        ["192.0.2.2".parse().ok()]
    );
    assert_eq!(service.ports.iter().map(|port| port.port).collect::<Vec<_>>(), [80, 83]);
    assert_eq!((service.source_ranges.len(), service.health_check_node_port), (1, None));
}

#[test]
fn a_slice() {
    let slice = slice(
        "addressType: IPv4
ports: [{name: http, port: 8080}, {name: any}]
endpoints:
- {addresses: [10.0.0.001, 10.0.0.9], nodeName: n1}
- {addresses: [10.0.0.2], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.0.0.3], hints: {forZones: [{name: za}], forNodes: [{name: n1}]}}
- {addresses: [10.0.0.3], hints: {forZones: []}}",
    );
    assert_eq!(
        (&*slice.service, slice.address_type, slice.hidden),
        ("web", AddressType::Ip(Family::V4), false)
    );
    assert_eq!((slice.ports[0].port, slice.ports[1].port), (Some(8080), None));
    let [first, second, third, fourth] = &slice.endpoints[..] else {
        panic!("duplicates stay for the model")
    };
    assert_eq!((first.addr.to_string().as_str(), first.node.as_deref()), ("10.0.0.1", Some("n1")));
    assert!(first.conditions.ready && first.conditions.serving && !first.conditions.terminating);
    assert!(!second.conditions.ready && second.conditions.serving && second.conditions.terminating);
    let hints = third.hints.as_ref().unwrap();
    assert_eq!((&*hints.zones[0], &*hints.nodes[0]), ("za", "n1"));
    assert!(fourth.hints.is_none());
}

#[test]
fn slices_a_proxy_cannot_use_convert() {
    let names = slice("addressType: FQDN\nendpoints: [{addresses: [backend.example.org]}]");
    assert_eq!((names.address_type, names.endpoints.len()), (AddressType::Fqdn, 0));
    assert_eq!(slice("addressType: IPv6\nendpoints: null").endpoints.len(), 0);
    for (label, hidden) in
        [("service.kubernetes.io/headless", true), ("service.kubernetes.io/service-proxy-name", false)]
    {
        let text = slice_yaml("addressType: IPv4").replace("labels: {", &format!("labels: {{{label}: '', "));
        let Ok(Change::Slice(slice)) = convert(&text) else { panic!("{text}") };
        assert_eq!(slice.hidden, hidden, "{label}");
    }
}

#[test]
fn bad_slices_are_refused_with_the_field() {
    let error = convert(&slice_yaml("addressType: IPX")).unwrap_err().to_string();
    assert_eq!(error, "addressType: \"IPX\" is none of IPv4, IPv6 and FQDN");
    let orphan = slice_yaml("addressType: IPv4").replace("kubernetes.io/service-name", "app");
    assert_eq!(convert(&orphan), Err(Rejected::NoServiceLabel));
}

/// What else the slice says counts: endpoints that it no longer has must go.
#[test]
fn bad_parts_of_a_slice_count_for_nothing() {
    let (reasons, change) = ignored(&slice_yaml(
        "addressType: IPv4
ports: [{port: 0}, {name: odd, protocol: ICMP, port: 1}, {name: good, port: 8080}]
endpoints:
- {addresses: []}
- {addresses: [nowhere]}
- {addresses: [10.0.0.1]}
- {addresses: ['fd00::1']}
- {addresses: [169.254.169.254]}",
    ));
    assert_eq!(
        reasons,
        [
            "ports[0].port: 0 is not a port number",
            "ports[1].protocol: \"ICMP\" is none of TCP, UDP and SCTP",
            "endpoints[0].addresses is empty",
            "endpoints[1].addresses[0]: \"nowhere\" is not an IP address",
            "endpoints[3].addresses[0]: fd00::1 is not an address of family IPv4",
            "endpoints[4].addresses[0]: 169.254.169.254 is unspecified, loopback, link-local or multicast",
        ]
    );
    let Change::Slice(slice) = change else { panic!("{change:?}") };
    assert_eq!(slice.ports.iter().map(|port| port.port).collect::<Vec<_>>(), [Some(8080)]);
    assert_eq!(slice.endpoints.iter().map(|e| e.addr.to_string()).collect::<Vec<_>>(), ["10.0.0.1"]);
}

#[test]
fn nodes_that_are_about_to_go() {
    let check = |metadata: &str, taints: &str, expected: (bool, bool)| {
        let text = format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: n1{metadata}}}\nspec: {{taints: [{taints}]}}"
        );
        let Ok(Change::Node(node)) = convert(&text) else { panic!("{text}") };
        assert_eq!((node.deleting, node.condemned), expected, "{text}");
    };
    check("", "", (false, false));
    check("", "{key: node.kubernetes.io/unschedulable, effect: NoSchedule}", (false, false));
    check("", "{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule, value: '1'}", (false, true));
    check(", deletionTimestamp: '2030-01-01T00:00:00Z'", "", (true, false));
}

#[test]
fn nodes_and_ranges() {
    let node = convert(
        "apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: za}}
spec: {podCIDR: 10.1.0.0/24}
status:
  addresses:
  - {type: ExternalIP, address: 203.0.113.1}
  - {type: Hostname, address: n1.example.org}
  - {type: InternalIP, address: 192.168.0.2}
  - {type: InternalIP, address: 'fd00::2'}",
    );
    let expected = Node {
        name: "n1".into(),
        addresses: ["192.168.0.2", "fd00::2", "203.0.113.1"].map(|a| a.parse().unwrap()).into(),
        zone: Some("za".into()),
        pod_cidrs: ["10.1.0.0/24".parse().unwrap()].into(),
        ..Node::default()
    };
    assert_eq!(node, Ok(Change::Node(expected)));
    let ranges = "apiVersion: networking.k8s.io/v1beta1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\n";
    let Ok(Change::ServiceCidr(cidr)) =
        convert(&format!("{ranges}spec: {{cidrs: [10.96.0.0/12, 'fd00::/112']}}"))
    else {
        panic!()
    };
    assert_eq!((&*cidr.name, cidr.ranges.len()), ("kubernetes", 2));
    let (reasons, change) = ignored(&format!("{ranges}spec: {{cidrs: [10.96.0.0, 'fd00::/112']}}"));
    let Change::ServiceCidr(cidr) = change else { panic!("{change:?}") };
    assert_eq!((&*reasons[0], cidr.ranges.len()), ("spec.cidrs[0]: \"10.96.0.0\" is not a CIDR", 1));
    let odd = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: {podCIDRs: [x, 10.1.0.0/24]}\n\
               status: {addresses: [{type: InternalIP, address: 127.0.0.1}, {type: InternalIP, address: 192.0.2.1}]}";
    let (reasons, change) = ignored(odd);
    let Change::Node(node) = change else { panic!("{change:?}") };
    assert_eq!((reasons.len(), node.addresses.len(), node.pod_cidrs.len()), (2, 1, 1));
}

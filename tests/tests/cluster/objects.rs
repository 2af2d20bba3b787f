//! The Kubernetes objects of the tests.

use serde_json::{Value, json};

/// The service that the tests are about.
pub(crate) const NAME: &str = "web";
/// The node's name.
pub(crate) const NODE: &str = "node-1";

/// Kinds that the tests write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Service,
    EndpointSlice,
    Node,
}

/// An object, and which API takes it.
pub(crate) type Object = (Kind, Value);

/// TCP and UDP, both families, with a node port.
pub(crate) fn service() -> Object {
    let port = |proto: &str| json!({"name": proto.to_lowercase(), "protocol": proto, "port": 80, "targetPort": 8080, "nodePort": 30080});
    let spec = json!({
        "type": "NodePort",
        "ipFamilyPolicy": "RequireDualStack",
        "ipFamilies": ["IPv4", "IPv6"],
        "clusterIPs": ["172.30.0.41", "fd00:96::41"],
        "clusterIP": "172.30.0.41",
        "ports": [port("TCP"), port("UDP")],
    });
    (Kind::Service, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": spec}))
}

/// The same with one more port for TCP.
pub(crate) fn service_with_port(number: u16) -> Object {
    let (kind, mut value) = service();
    let port = json!({"name": "more", "protocol": "TCP", "port": number, "targetPort": 8080});
    if let Some(ports) = value["spec"]["ports"].as_array_mut() {
        ports.push(port);
    }
    (kind, value)
}

/// Another Service, of so many ports.
pub(crate) fn service_of_ports(name: &str, address: &str, count: u16) -> Object {
    let ports: Vec<_> = (1..=count).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let spec = json!({"clusterIP": address, "ports": ports});
    (Kind::Service, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}))
}

/// The IPv4 endpoints of the service.
pub(crate) fn slice(addresses: &[&str]) -> Object {
    slice_of(NAME, "web-v4", "IPv4", addresses)
}

/// The same with one more port for TCP, called so.
pub(crate) fn slice_with_port(addresses: &[&str], name: &str) -> Object {
    let (kind, mut value) = slice(addresses);
    if let Some(ports) = value["ports"].as_array_mut() {
        ports.push(json!({"name": name, "protocol": "TCP", "port": 8080}));
    }
    (kind, value)
}

/// The same, with the time of what made its controller write it.
pub(crate) fn slice_triggered(addresses: &[&str], at: &str) -> Object {
    let (kind, mut value) = slice(addresses);
    value["metadata"]["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": at});
    (kind, value)
}

/// An IPv6 endpoint: the first pod.
pub(crate) fn slice6() -> Object {
    slice_of(NAME, "web-v6", "IPv6", &["fd00:10::1:1"])
}

/// What an API server takes, and an agent can do nothing with.
pub(crate) fn useless() -> Vec<Object> {
    let external = json!({"type": "ExternalName", "externalName": "example.org"});
    let metadata = json!({"name": "elsewhere"});
    let external = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": external});
    let mut nameless = slice_of("nobody", "nameless", "IPv4", &["10.180.0.1"]);
    nameless.1["metadata"]["labels"] = json!({});
    vec![
        (Kind::Service, external),
        nameless,
        slice_of("nobody", "of-no-service", "IPv4", &["10.180.0.1"]),
        slice_of(NAME, "by-name", "FQDN", &["example.org"]),
    ]
}

/// The node with its addresses, which are written as its status.
pub(crate) fn node() -> Object {
    let addresses =
        ["192.168.0.2", "2001:db8::1"].map(|address| json!({"type": "InternalIP", "address": address}));
    let labels = json!({"kubernetes.io/hostname": NODE});
    let metadata = json!({"name": NODE, "labels": labels});
    (
        Kind::Node,
        json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"addresses": addresses}}),
    )
}

/// The node with these taints, `KEY:EFFECT`, and no others.
pub(crate) fn node_with_taints(taints: &[&str]) -> Object {
    let taint = |text: &&str| {
        let (key, effect) = text.split_once(':').unwrap_or((text, "NoSchedule"));
        json!({"key": key, "effect": effect})
    };
    let (kind, mut value) = node();
    value["spec"] = json!({"taints": taints.iter().map(taint).collect::<Vec<_>>()});
    (kind, value)
}

fn slice_of(service: &str, name: &str, family: &str, addresses: &[&str]) -> Object {
    let port = |proto: &str| json!({"name": proto.to_lowercase(), "protocol": proto, "port": 8080});
    let endpoint =
        |address: &&str| json!({"addresses": [address], "conditions": {"ready": true}, "nodeName": NODE});
    let endpoints: Vec<_> = addresses.iter().map(endpoint).collect();
    let value = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": family,
        "endpoints": endpoints,
        "ports": [port("TCP"), port("UDP")],
    });
    (Kind::EndpointSlice, value)
}

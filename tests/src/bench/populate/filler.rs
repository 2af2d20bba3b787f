//! What a filler is: a service with endpoints that nobody asks.

use serde_json::{Value, json};
use std::net::Ipv4Addr;

/// Endpoints of each.
pub const ENDPOINTS: u32 = 10;

/// The address of the first filler; those before it are for services that are asked.
const FIRST_SERVICE: u32 = u32::from_be_bytes([10, 97, 0, 0]);
/// The address of the first endpoint. No pod of the topology is near.
const FIRST_ENDPOINT: u32 = u32::from_be_bytes([10, 128, 0, 1]);
/// Nodes that endpoints are on, from this number on; none is where the proxy is measured.
const FIRST_NODE: u32 = 2;
const NODES: u32 = 8;

/// The name of a filler.
pub fn name(number: u32) -> String {
    format!("filler-{number:05}")
}

/// The address of its service.
pub(super) fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST_SERVICE + number)
}

pub(super) fn service(number: u32) -> Value {
    let address = address(number).to_string();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name(number), "namespace": super::NAMESPACE},
        "spec": {
            "clusterIP": address,
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        },
    })
}

/// The slice of a filler, as it was made.
pub fn slice(number: u32) -> Value {
    let first = number * ENDPOINTS;
    let endpoints = (first..first + ENDPOINTS).map(|place| endpoint(FIRST_ENDPOINT + place, place));
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name(number),
            "namespace": super::NAMESPACE,
            "labels": {"kubernetes.io/service-name": name(number)},
        },
        "addressType": "IPv4",
        "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    })
}

/// An endpoint with this address, on one of the other nodes.
pub fn endpoint(address: u32, place: u32) -> Value {
    json!({
        "addresses": [Ipv4Addr::from_bits(address).to_string()],
        "nodeName": format!("node{}", FIRST_NODE + place % NODES),
        "conditions": {"ready": true},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_fillers_share_an_address() {
        let addresses = |number| {
            let slice = slice(number);
            let endpoints = slice["endpoints"].as_array().cloned().unwrap_or_default();
            endpoints.iter().map(|endpoint| endpoint["addresses"][0].to_string()).collect::<Vec<_>>()
        };
        assert_eq!(addresses(0).len(), 10);
        assert_eq!(addresses(0)[9], "\"10.128.0.10\"");
        assert_eq!(addresses(1)[0], "\"10.128.0.11\"");
        assert_eq!(addresses(49_999)[9], "\"10.135.161.32\"");
        assert_eq!(service(49_999)["spec"]["clusterIP"], "10.97.195.79");
    }
}

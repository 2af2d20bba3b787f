//! More services like `one` of `tests/manifests/two-nodes.yaml`.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::net::IpAddr;
use tests::manifests;

const SLICES: [&str; 2] = ["one-4", "one-6"];

/// Adds a service with the ports of `one`, and its endpoints, on addresses of both families. Returns it.
pub(crate) fn add<'a>(
    objects: &'a mut Vec<Value>,
    name: &str,
    addresses: [IpAddr; 2],
) -> Result<&'a mut Value> {
    let mut service = manifests::find(objects, "Service", "one")?.clone();
    service["metadata"]["name"] = name.into();
    service["spec"] = json!({
        "type": "ClusterIP", "clusterIP": addresses[0], "clusterIPs": addresses,
        "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack", "ports": service["spec"]["ports"],
    });
    for port in service["spec"]["ports"].as_array_mut().context("ports")? {
        port.as_object_mut().context("a port")?.remove("nodePort");
    }
    service.as_object_mut().context("a service")?.remove("status");
    for slice in SLICES {
        let mut copy = manifests::find(objects, "EndpointSlice", slice)?.clone();
        copy["metadata"]["name"] = slice_name(slice, name).into();
        copy["metadata"]["labels"]["kubernetes.io/service-name"] = name.into();
        objects.push(copy);
    }
    objects.push(service);
    objects.last_mut().context("it was just added")
}

/// Gives the added service one other endpoint, or none, in both families.
pub(crate) fn lead(objects: &mut [Value], name: &str, to: Option<[&str; 2]>) -> Result<()> {
    for (family, slice) in SLICES.into_iter().enumerate() {
        let endpoints =
            &mut manifests::find(objects, "EndpointSlice", &slice_name(slice, name))?["endpoints"];
        match to {
            Some(addresses) => endpoints[0]["addresses"] = json!([addresses[family]]),
            None => *endpoints = json!([]),
        }
    }
    Ok(())
}

fn slice_name(slice: &str, service: &str) -> String {
    slice.replacen("one", service, 1)
}

//! The objects of a case as they change from step to step, and the Node among them.

use super::case::{Reference, Step};
use serde_json::{Map, Value, json};

/// What the agent is given.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    objects: Vec<Value>,
    node: Map<String, Value>,
}

impl Objects {
    pub(super) fn new(objects: &[Value], node: &Map<String, Value>) -> Self {
        Self { objects: objects.to_vec(), node: node.clone() }
    }

    /// Makes the changes of a step.
    pub(super) fn change(&mut self, step: &Step) {
        for removed in &step.delete {
            self.objects.retain(|object| reference(object) != *removed);
        }
        for applied in &step.apply {
            let name = reference(applied);
            match self.objects.iter_mut().find(|object| reference(object) == name) {
                Some(object) => *object = applied.clone(),
                None => self.objects.push(applied.clone()),
            }
        }
        self.node.extend(step.node_update.clone());
    }

    /// Everything, with the Node.
    pub(super) fn all(&self) -> Vec<Value> {
        let mut all = self.objects.clone();
        all.push(node(&self.node));
        all
    }
}

fn reference(object: &Value) -> Reference {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    Reference {
        kind: text(&object["kind"]),
        namespace: text(&metadata["namespace"]),
        name: text(&metadata["name"]),
    }
}

/// The Node object that the short form of the cases stands for.
fn node(short: &Map<String, Value>) -> Value {
    let name = &short["name"];
    let mut labels = json!({"kubernetes.io/hostname": name});
    if let Some(zone) = short.get("zone") {
        labels["topology.kubernetes.io/zone"] = zone.clone();
    }
    let mut metadata = json!({"name": name, "labels": labels});
    if short.get("deleting") == Some(&Value::Bool(true)) {
        metadata["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
        // Only a finalizer keeps an object that is being deleted.
        metadata["finalizers"] = json!(["shunt.dev/conformance"]);
    }
    let mut spec = json!({});
    for field in ["podCIDRs", "taints", "unschedulable"] {
        if let Some(value) = short.get(field) {
            spec[field] = value.clone();
        }
    }
    if let Some(first) = short.get("podCIDRs").and_then(|ranges| ranges.get(0)) {
        spec["podCIDR"] = first.clone();
    }
    let addresses = short.get("addresses").and_then(Value::as_array).into_iter().flatten();
    let addresses: Vec<_> = addresses.map(|a| json!({"type": "InternalIP", "address": a})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": spec,
        "status": {"addresses": addresses},
    })
}

/// An address of an EndpointSlice.
pub(super) struct Endpoint<'a> {
    pub(super) address: &'a str,
    pub(super) node: Option<&'a str>,
}

/// All endpoints of a slice; nothing for other objects.
pub(super) fn endpoints(object: &Value) -> impl Iterator<Item = Endpoint<'_>> {
    let endpoints = object["endpoints"].as_array().into_iter().flatten();
    endpoints.flat_map(|endpoint| {
        let node = endpoint["nodeName"].as_str();
        let addresses = endpoint["addresses"].as_array().into_iter().flatten();
        addresses.filter_map(Value::as_str).map(move |address| Endpoint { address, node })
    })
}

/// Protocols and ports of a slice; nothing for other objects.
pub(super) fn slice_ports(object: &Value) -> impl Iterator<Item = (&str, u16)> {
    let is_slice = object["kind"] == "EndpointSlice";
    let ports = object["ports"].as_array().filter(|_| is_slice).into_iter().flatten();
    ports.filter_map(|port| {
        let number = port["port"].as_u64().and_then(|number| u16::try_from(number).ok())?;
        Some((port["protocol"].as_str().unwrap_or("TCP"), number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_replace_add_and_delete() {
        let object = |name: &str, value: u32| json!({"kind": "Service", "metadata": {"namespace": "n", "name": name}, "v": value});
        let mut objects =
            Objects::new(&[object("a", 1), object("b", 1)], &Map::from_iter([("name".into(), json!("x"))]));
        let step: Step = serde_json::from_value(json!({
            "apply": [object("a", 2), object("c", 1)],
            "delete": [{"kind": "Service", "namespace": "n", "name": "b"}],
            "nodeUpdate": {"zone": "z"},
        }))
        .expect("a step");
        objects.change(&step);
        let all = objects.all();
        assert_eq!(all[..2], [object("a", 2), object("c", 1)]);
        assert_eq!(all[2]["metadata"]["labels"]["topology.kubernetes.io/zone"], "z");
    }
}

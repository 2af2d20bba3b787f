//! Manifests the demo and the node tier serve.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use std::ops::Range;

/// Services of two nodes, as people would write them.
pub const TWO_NODES: &str = include_str!("../manifests/two-nodes.yaml");

/// The objects of [`TWO_NODES`].
pub fn two_nodes() -> Result<Vec<Value>> {
    parse(TWO_NODES)
}

/// The objects of a file with any number of documents.
pub fn parse(text: &str) -> Result<Vec<Value>> {
    let documents = serde_norway::Deserializer::from_str(text);
    documents.map(|document| Value::deserialize(document).context("a manifest")).collect()
}

/// Services of two ports each, without endpoints, that fill maps.
pub fn fillers(numbers: Range<usize>) -> impl Iterator<Item = Value> {
    numbers.map(|number| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": format!("filler-{number}"), "namespace": "demo"},
            "spec": {
                "clusterIP": format!("10.96.{}.{}", 1 + number / 200, 1 + number % 200),
                "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}],
            },
        })
    })
}

/// The object of this kind and name.
pub fn find<'a>(objects: &'a mut [Value], kind: &str, name: &str) -> Result<&'a mut Value> {
    let mut fitting = objects.iter_mut().filter(|object| object["kind"] == kind);
    fitting.find(|object| object["metadata"]["name"] == name).with_context(|| format!("no {kind} {name}"))
}

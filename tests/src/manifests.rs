//! Manifests the demo and the node tier serve.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

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

/// The object of this kind and name.
pub fn find<'a>(objects: &'a mut [Value], kind: &str, name: &str) -> Result<&'a mut Value> {
    let mut fitting = objects.iter_mut().filter(|object| object["kind"] == kind);
    fitting.find(|object| object["metadata"]["name"] == name).with_context(|| format!("no {kind} {name}"))
}

//! Tells when an agent has seen everything that was written.
//!
//! A watch shows the changes of its kind in their order. So after all others an object of each kind
//! is written that no watch of an agent leaves out and that changes nothing of what it does: a headless
//! service, its slice without endpoints, their namespace, and a note on the ranges that the API server
//! makes itself. An agent that has come to the version of the marker has seen what was written before
//! it, deletions among it. Of the Nodes an agent watches its own alone, so that is its marker; a
//! deletion of it is not waited for.

use std::{
    collections::BTreeMap,
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use kube::{
    Client,
    api::{Patch, PatchParams},
    core::DynamicObject,
};
use serde_json::{Value, json};

use super::content::{OWN_RANGES, api, describe, name};

/// The name of the markers, and of their namespace.
const NAME: &str = "written-last";

const SERVICE_CIDR: &str = "ServiceCIDR";

/// The versions of markers, by kind.
#[derive(Clone, Debug, Default)]
pub struct Versions(BTreeMap<String, u64>);

impl Versions {
    /// Whether `told`, of pairs `KIND=VERSION`, has all of them or later ones.
    pub fn are_reached(&self, told: &str) -> bool {
        let told: BTreeMap<&str, u64> = told.split_whitespace().filter_map(pair).collect();
        self.0.iter().all(|(kind, version)| told.get(kind.as_str()) >= Some(version))
    }

    /// Those of an agent that may not see ServiceCIDRs.
    pub(super) fn without_service_cidrs(mut self) -> Self {
        self.0.remove(SERVICE_CIDR);
        self
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<_> = self.0.iter().map(|(kind, version)| format!("{kind}={version}")).collect();
        f.pad(&pairs.join(" "))
    }
}

fn pair(text: &str) -> Option<(&str, u64)> {
    let (kind, version) = text.split_once('=')?;
    Some((kind, version.parse().ok()?))
}

/// The markers as they were last written.
#[derive(Debug, Default)]
pub(super) struct Markers {
    of_all: Versions,
    nodes: BTreeMap<String, u64>,
}

impl Markers {
    /// Writes them anew, behind everything else. `objects` are all there is.
    pub(super) async fn write(&mut self, client: &Client, objects: &[Value]) -> Result<()> {
        let pods = objects.iter().any(|object| kind(object) == "Pod");
        ensure!(!pods, "nothing tells when an agent has seen a Pod of an API server");
        for marker in markers()? {
            let params = PatchParams::apply("tests").force();
            let written = api(client, &marker)?.patch(name(&marker)?, &params, &Patch::Apply(&marker)).await;
            let written = written.with_context(|| format!("write {}", describe(&marker)))?;
            self.of_all.0.insert(kind(&marker).into(), version(&written)?);
        }
        self.nodes.clear();
        for node in objects.iter().filter(|object| kind(object) == "Node") {
            let current = api(client, node)?.get(name(node)?).await?;
            self.nodes.insert(name(node)?.into(), version(&current)?);
        }
        Ok(())
    }

    /// Whether they have never been written.
    pub(super) fn are_missing(&self) -> bool {
        self.of_all.0.is_empty()
    }

    /// What the agent of that node has to come to.
    pub(super) fn for_node(&self, name: &str) -> Versions {
        let mut versions = self.of_all.clone();
        versions.0.extend(self.nodes.get(name).map(|version| ("Node".into(), *version)));
        versions
    }
}

/// In the order in which they can be made.
fn markers() -> Result<[Value; 4]> {
    // What is the same as before would get no new version; data may be from an earlier run.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos().to_string();
    let metadata = json!({"name": NAME, "namespace": NAME, "annotations": {"tests/written": now}});
    let mut slice_metadata = metadata.clone();
    slice_metadata["labels"] = json!({"kubernetes.io/service-name": NAME});
    Ok([
        json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAME, "annotations": metadata["annotations"]},
        }),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": "None"}}),
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": slice_metadata,
            "addressType": "IPv4",
            "endpoints": [],
        }),
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": SERVICE_CIDR,
            "metadata": {"name": OWN_RANGES, "annotations": metadata["annotations"]},
        }),
    ])
}

fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

fn version(object: &DynamicObject) -> Result<u64> {
    let text = object.metadata.resource_version.as_deref().context("no resourceVersion")?;
    text.parse().with_context(|| format!("resourceVersion {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_marker_must_be_reached() {
        let wanted = Versions([("Node".into(), 7), ("Service".into(), 12)].into());
        for (told, reached) in [
            ("Node=7 Service=12", true),
            ("EndpointSlice=1 Node=8 Service=100", true),
            ("Node=8 Service=11", false),
            ("Service=12", false),
            ("", false),
        ] {
            assert_eq!(wanted.are_reached(told), reached, "{told:?}");
        }
        assert!(Versions::default().are_reached(""));
        let blind = Versions([("Service".into(), 12), (SERVICE_CIDR.into(), 13)].into());
        assert!(!blind.are_reached("Service=12"));
        assert!(blind.without_service_cidrs().are_reached("Service=12"));
    }
}

//! Nodes.

use std::{net::IpAddr, slice};

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    super::api::{Node as ApiNode, NodeSpec},
    Convert, Ignored, Kind, Rejected, address, require_name,
};
use crate::model::{Change, Node, Taint};

const ZONE: &str = "topology.kubernetes.io/zone";

/// The cluster autoscaler puts it on a node that it is about to remove.
const CONDEMNED: &str = "ToBeDeletedByClusterAutoscaler";

impl Convert for ApiNode {
    const KIND: Kind = Kind::Node;

    fn meta(&self) -> &ObjectMeta {
        &self.metadata.0
    }

    fn convert(&self, ignored: &mut Ignored) -> Result<Change, Rejected> {
        node(self, ignored).map(Change::Node)
    }
}

fn node(object: &ApiNode, ignored: &mut Ignored) -> Result<Node, Rejected> {
    let taints = &object.spec.taints;
    let zone = object.metadata.0.labels.as_ref().and_then(|l| l.get(ZONE)).filter(|zone| !zone.is_empty());
    Ok(Node {
        name: require_name(object.key())?.name,
        addresses: addresses(object, ignored),
        zone: zone.map(|zone| zone.as_str().into()),
        pod_cidrs: pod_cidrs(&object.spec, ignored),
        deleting: object.metadata.0.deletion_timestamp.is_some(),
        condemned: taints.iter().any(|taint| taint.key == CONDEMNED),
        taints: taints
            .iter()
            .map(|t| Taint { key: t.key.as_str().into(), effect: t.effect.as_str().into() })
            .collect(),
    })
}

/// Internal addresses before external ones, each in their order: the first of a family is the primary one.
fn addresses(object: &ApiNode, ignored: &mut Ignored) -> Box<[IpAddr]> {
    let list = &object.status.addresses;
    let of_type = |wanted: &'static str| {
        let entries = list.iter().enumerate().filter(move |(_, entry)| entry.type_ == wanted);
        entries.map(|(i, entry)| {
            address::parse_reachable(|| format!("status.addresses[{i}].address"), &entry.address)
        })
    };
    ignored.keep_all(of_type("InternalIP").chain(of_type("ExternalIP")))
}

/// `podCIDRs`, or `podCIDR` alone in objects older than dual stack.
fn pod_cidrs(spec: &NodeSpec, ignored: &mut Ignored) -> Box<[IpNet]> {
    let (path, texts) = match &spec.pod_cidrs[..] {
        [] => ("spec.podCIDR", slice::from_ref(&spec.pod_cidr)),
        list => ("spec.podCIDRs", list),
    };
    let texts = texts.iter().enumerate().filter(|(_, text)| !text.is_empty());
    ignored.keep_all(texts.map(|(i, text)| address::parse_net(|| format!("{path}[{i}]"), text)))
}

//! Objects of the Kubernetes API, as far as a proxy reads them. The names are the API's, whose reference says what they mean.
//!
//! What else objects have is passed over unread: that it has an odd form is nobody's concern here, and a cluster's objects
//! are mostly what a proxy does not read.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{
    Resource as _,
    api::{core::v1, discovery::v1 as discovery_v1, networking::v1 as networking_v1},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Resource,
    core::{ClusterResourceScope, NamespaceResourceScope},
};
use serde::{Deserialize, Deserializer};

/// Declares types of which a field that is absent or null has its default.
macro_rules! read {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$serde:meta])* $field:ident: $type:ty,)+ }
    )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub(super) struct $name {
            $($(#[$serde])* #[serde(deserialize_with = "or_default")] pub(super) $field: $type,)+
        }
    )+};
}

/// Declares which kinds of objects types are.
macro_rules! resources {
    ($($name:ident: $kind:ty, $scope:ty;)+) => {$(
        impl Resource for $name {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                <$kind>::KIND.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                <$kind>::GROUP.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                <$kind>::VERSION.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                <$kind>::URL_PATH_SEGMENT.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata.0
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata.0
            }
        }
    )+};
}

resources! {
    Service: v1::Service, NamespaceResourceScope;
    EndpointSlice: discovery_v1::EndpointSlice, NamespaceResourceScope;
    Node: v1::Node, ClusterResourceScope;
    ServiceCidr: networking_v1::ServiceCIDR, ClusterResourceScope;
}

read! {
    /// v1.
    Service { metadata: Meta, spec: Option<ServiceSpec>, status: ServiceStatus, }
    ServiceSpec {
        #[serde(rename = "type")] type_: String,
        #[serde(rename = "clusterIP")] cluster_ip: Option<String>,
        #[serde(rename = "clusterIPs")] cluster_ips: Vec<String>,
        #[serde(rename = "externalIPs")] external_ips: Vec<String>,
        ip_families: Vec<String>,
        ports: Vec<ServicePort>,
        internal_traffic_policy: String,
        external_traffic_policy: String,
        session_affinity: String,
        session_affinity_config: SessionAffinityConfig,
        load_balancer_source_ranges: Vec<String>,
        health_check_node_port: i32,
    }
    ServicePort { name: String, protocol: String, port: i32, node_port: i32, }
    SessionAffinityConfig { #[serde(rename = "clientIP")] client_ip: ClientIpConfig, }
    ClientIpConfig { timeout_seconds: Option<i32>, }
    ServiceStatus { load_balancer: LoadBalancerStatus, }
    LoadBalancerStatus { ingress: Vec<LoadBalancerIngress>, }
    LoadBalancerIngress { ip: String, ip_mode: String, }

    /// discovery.k8s.io/v1.
    EndpointSlice { metadata: Meta, address_type: String, ports: Vec<EndpointPort>, endpoints: Vec<Endpoint>, }
    EndpointPort { name: String, protocol: String, port: Option<i32>, }
    Endpoint {
        addresses: Vec<String>,
        conditions: EndpointConditions,
        node_name: Option<String>,
        zone: Option<String>,
        hints: EndpointHints,
        target_ref: ObjectReference,
    }
    EndpointConditions { ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>, }
    EndpointHints { for_zones: Vec<Named>, for_nodes: Vec<Named>, }
    Named { name: String, }
    ObjectReference { kind: String, name: String, }

    /// v1.
    Node { metadata: Meta, spec: NodeSpec, status: NodeStatus, }
    NodeSpec {
        #[serde(rename = "podCIDR")] pod_cidr: String,
        #[serde(rename = "podCIDRs")] pod_cidrs: Vec<String>,
        taints: Vec<Taint>,
    }
    Taint { key: String, effect: String, }
    NodeStatus { addresses: Vec<NodeAddress>, }
    NodeAddress { #[serde(rename = "type")] type_: String, address: String, }

    /// networking.k8s.io/v1.
    ServiceCidr { metadata: Meta, spec: ServiceCidrSpec, }
    ServiceCidrSpec { cidrs: Vec<String>, }

    ReadMeta {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
    }
}

/// Metadata without what a proxy does not read: who manages which fields is longer than a small object.
#[derive(Clone, Debug, Default)]
pub(super) struct Meta(pub(super) ObjectMeta);

impl<'de> Deserialize<'de> for Meta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = ReadMeta::deserialize(deserializer)?;
        Ok(Self(ObjectMeta {
            name: read.name,
            namespace: read.namespace,
            uid: read.uid,
            resource_version: read.resource_version,
            creation_timestamp: read.creation_timestamp,
            deletion_timestamp: read.deletion_timestamp,
            labels: read.labels,
            annotations: read.annotations,
            ..ObjectMeta::default()
        }))
    }
}

fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

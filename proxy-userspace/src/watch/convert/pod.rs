//! Pods and namespaces: who wants no socket LB. Only metadata is asked of an API server;
//! manifests have whole objects.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{Namespace as ApiNamespace, Pod as ApiPod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::core::PartialObjectMeta;

use super::{Convert, Ignored, Kind, Rejected, require_name};
use crate::model::{Change, Namespace, Pod};

/// The label, or else the annotation, by which a pod or a namespace chooses.
const SOCKET_LB: &str = "shunt.dev/socket-lb";

/// kubelet names the cgroup of a static pod by this, not by the UID of the mirror pod.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

impl Convert for ApiPod {
    const KIND: Kind = Kind::Pod;

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn convert(&self, _: &mut Ignored) -> Result<Change, Rejected> {
        let node = self.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        pod(self, node.filter(|name| !name.is_empty()).map(Into::into))
    }
}

impl Convert for PartialObjectMeta<ApiPod> {
    const KIND: Kind = Kind::Pod;

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn convert(&self, _: &mut Ignored) -> Result<Change, Rejected> {
        pod(self, None)
    }
}

impl Convert for ApiNamespace {
    const KIND: Kind = Kind::Namespace;

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn convert(&self, _: &mut Ignored) -> Result<Change, Rejected> {
        namespace(self)
    }
}

impl Convert for PartialObjectMeta<ApiNamespace> {
    const KIND: Kind = Kind::Namespace;

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn convert(&self, _: &mut Ignored) -> Result<Change, Rejected> {
        namespace(self)
    }
}

fn pod(object: &impl Convert, node: Option<Arc<str>>) -> Result<Change, Rejected> {
    let meta = object.meta();
    let hash = meta.annotations.as_ref().and_then(|annotations| annotations.get(CONFIG_HASH));
    let uid = hash.or(meta.uid.as_ref()).map_or("", String::as_str);
    let (name, socket_lb) = (require_name(object.key())?, socket_lb(meta)?);
    if uid.is_empty() && socket_lb == Some(false) {
        return Err(Rejected::NoUid);
    }
    Ok(Change::Pod(Pod { name, node, uid: uid.into(), socket_lb }))
}

fn namespace(object: &impl Convert) -> Result<Change, Rejected> {
    let name = require_name(object.key())?.name;
    Ok(Change::Namespace(Namespace { name, socket_lb: socket_lb(object.meta())? }))
}

/// The label counts before the annotation.
fn socket_lb(meta: &ObjectMeta) -> Result<Option<bool>, Rejected> {
    let label = meta.labels.as_ref().and_then(|labels| labels.get(SOCKET_LB)).map(|v| ("labels", v));
    let annotation = || meta.annotations.as_ref().and_then(|a| a.get(SOCKET_LB)).map(|v| ("annotations", v));
    match label.or_else(annotation) {
        None => Ok(None),
        Some((_, value)) if value == "disabled" => Ok(Some(false)),
        Some((_, value)) if value == "enabled" => Ok(Some(true)),
        Some((place, value)) => Err(Rejected::NotASwitch {
            field: format!("metadata.{place}[{SOCKET_LB}]"),
            value: value.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: serde_json::Value) -> Result<Change, Rejected> {
        serde_json::from_value::<ApiPod>(json).expect("a pod").convert(&mut Ignored::default())
    }

    fn expected(uid: &str, socket_lb: Option<bool>) -> Result<Change, Rejected> {
        let name = crate::model::ObjectName::new("ns", "p");
        Ok(Change::Pod(Pod { name, node: Some("n1".into()), uid: uid.into(), socket_lb }))
    }

    #[test]
    fn labels_count_before_annotations() {
        let pod = |labels, annotations| {
            read(serde_json::json!({
                "metadata": {"name": "p", "namespace": "ns", "uid": "u",
                    "labels": labels, "annotations": annotations},
                "spec": {"nodeName": "n1", "containers": []},
            }))
        };
        let (on, off) = ([(SOCKET_LB, "enabled")], [(SOCKET_LB, "disabled")]);
        let map = |pairs: &[(&str, &str)]| -> serde_json::Value {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).into()))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        assert_eq!(pod(map(&[]), map(&[])), expected("u", None));
        assert_eq!(pod(map(&off), map(&on)), expected("u", Some(false)));
        assert_eq!(pod(map(&[]), map(&on)), expected("u", Some(true)));
        assert_eq!(pod(map(&[]), map(&[(CONFIG_HASH, "static")])), expected("static", None));
        assert!(matches!(pod(map(&[(SOCKET_LB, "off")]), map(&[])), Err(Rejected::NotASwitch { .. })));
    }

    #[test]
    fn a_pod_without_uid_cannot_opt_out() {
        let pod = |labels| read(serde_json::json!({"metadata": {"name": "p", "labels": labels}}));
        assert!(pod(serde_json::json!({})).is_ok());
        assert_eq!(pod(serde_json::json!({SOCKET_LB: "disabled"})), Err(Rejected::NoUid));
    }
}

//! Objects of which one that cannot be read concerns nobody else: a list or a watch has many, and goes on.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::convert::{Convert, Ignored, Kind, Rejected};
use crate::model::Change;

/// An object as it came.
#[derive(Clone, Debug)]
pub(super) enum Lenient<K> {
    /// It could be read.
    Read(K),
    /// It could not: what is known of it, and why.
    Unreadable(Box<(ObjectMeta, Rejected)>),
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let mut json = serde_json::Deserializer::from_str(text.get());
        Ok(match serde_path_to_error::deserialize(&mut json) {
            Ok(object) => Self::Read(object),
            Err(error) => Self::Unreadable(Box::new((identity(text.get()), malformed(&error)))),
        })
    }
}

/// Why an object could not be read.
pub(super) fn malformed(error: &serde_path_to_error::Error<serde_json::Error>) -> Rejected {
    Rejected::Malformed { field: error.path().to_string(), reason: error.inner().to_string() }
}

/// By what an object that cannot be read is known, as far as it says: its last good state stays, for which it has to be
/// recognised.
fn identity(text: &str) -> ObjectMeta {
    let object: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let field = |name: &str| object["metadata"][name].as_str().map(str::to_owned);
    ObjectMeta {
        name: field("name"),
        namespace: field("namespace"),
        resource_version: field("resourceVersion"),
        ..ObjectMeta::default()
    }
}

impl<K: Convert> Convert for Lenient<K> {
    const KIND: Kind = K::KIND;

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Read(object) => Convert::meta(object),
            Self::Unreadable(known) => &known.0,
        }
    }

    fn convert(&self, ignored: &mut Ignored) -> Result<Change, Rejected> {
        match self {
            Self::Read(object) => object.convert(ignored),
            Self::Unreadable(known) => Err(known.1.clone()),
        }
    }

    fn triggered(&self) -> Option<Timestamp> {
        match self {
            Self::Read(object) => object.triggered(),
            Self::Unreadable(_) => None,
        }
    }
}

impl<K: Resource> Resource for Lenient<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &K::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &K::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &K::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &K::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Read(object) => object.meta(),
            Self::Unreadable(known) => &known.0,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Read(object) => object.meta_mut(),
            Self::Unreadable(known) => &mut known.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::WatchEvent;

    use super::*;
    use crate::watch::{
        api::{EndpointSlice, Service},
        convert::Found,
    };

    fn found<K: Convert + Clone + DeserializeOwned>(event: &str) -> Found {
        match serde_json::from_str::<WatchEvent<Lenient<K>>>(event).expect("an event") {
            WatchEvent::Modified(object) => Found::of(&object),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_nobody_reads_may_be_odd() {
        let found = found::<Service>(
            r#"{"type": "MODIFIED", "object": {"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "a", "namespace": "ns", "resourceVersion": "7", "managedFields": 5},
                "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "targetPort": {"odd": true}}], "selector": null},
                "status": {"loadBalancer": {}, "conditions": [{"type": "X", "lastTransitionTime": null}]}}}"#,
        );
        assert!(found.change.is_ok() && found.ignored.is_empty(), "{found:?}");
    }

    #[test]
    fn an_object_that_cannot_be_read_is_known_by_its_name() {
        let event = r#"{"type": "MODIFIED", "object": {"metadata": {"name": "a", "namespace": "ns",
            "resourceVersion": "7"}, "addressType": "IPv4", "endpoints": [{"addresses": 5}]}}"#;
        let found = found::<EndpointSlice>(event);
        assert_eq!(found.key.to_string(), "EndpointSlice ns/a");
        let reason = found.change.expect_err("refused").to_string();
        assert!(reason.starts_with("endpoints[0].addresses: invalid type: integer `5`"), "{reason}");
        let WatchEvent::Modified(object) =
            serde_json::from_str::<WatchEvent<Lenient<EndpointSlice>>>(event).unwrap()
        else {
            panic!("{event}")
        };
        assert_eq!(
            Resource::meta(&object).resource_version.as_deref(),
            Some("7"),
            "or the watch begins anew"
        );
    }
}

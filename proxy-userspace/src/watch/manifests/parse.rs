//! From the text of a manifest file to objects.

use std::path::Path;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use thiserror::Error;
use tracing::debug;

use super::super::{
    api,
    convert::{Convert, Found, ObjectKey},
    lenient::malformed,
};
use crate::model::ObjectName;

/// Why a file could not be read to its end. What it said before stays in force.
#[derive(Debug, Error)]
pub enum FileError {
    /// The operating system refuses.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Not YAML.
    #[error("document {document}: {source}")]
    Yaml {
        /// Position in the file, from 1.
        document: usize,
        /// With line and column.
        source: serde_norway::Error,
    },
    /// Not JSON.
    #[error("document {document}: {source}")]
    Json {
        /// Position in the file, from 1.
        document: usize,
        /// With line and column.
        source: serde_json::Error,
    },
    /// YAML or JSON, and no Kubernetes object.
    #[error("document {document}: not an object with apiVersion and kind")]
    NotAnObject {
        /// Position in the file, from 1.
        document: usize,
    },
}

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One or more documents, separated by `---`.
    Yaml,
    /// One or more values, one after the other.
    Json,
}

impl Format {
    /// The format of manifests called so; nothing for other files and hidden ones.
    pub fn of(path: &Path) -> Option<Self> {
        if path.file_name()?.as_encoded_bytes().starts_with(b".") {
            return None;
        }
        match path.extension()?.to_str()? {
            "yaml" | "yml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Reads all objects of a file, in their order.
pub fn parse(text: &str, format: Format) -> Result<Vec<Found>, FileError> {
    let mut found = Vec::new();
    for (i, value) in documents(text, format)?.into_iter().enumerate() {
        if !value.is_null() {
            object(value, i + 1, None, &mut found)?;
        }
    }
    Ok(found)
}

fn documents(text: &str, format: Format) -> Result<Vec<Value>, FileError> {
    match format {
        Format::Yaml => {
            let documents = serde_norway::Deserializer::from_str(text).enumerate();
            let read =
                |(i, d)| Value::deserialize(d).map_err(|source| FileError::Yaml { document: i + 1, source });
            documents.map(read).collect()
        }
        Format::Json => {
            let documents = serde_json::Deserializer::from_str(text).into_iter().enumerate();
            let read = |(i, d): (usize, Result<_, _>)| {
                d.map_err(|source| FileError::Json { document: i + 1, source })
            };
            documents.map(read).collect()
        }
    }
}

/// Version and kind of the items of a typed list, which need not repeat them.
type ItemType = (String, String);

fn object(
    mut value: Value,
    document: usize,
    item_of: Option<&ItemType>,
    found: &mut Vec<Found>,
) -> Result<(), FileError> {
    let not_an_object = FileError::NotAnObject { document };
    let Some(map) = value.as_object_mut() else { return Err(not_an_object) };
    // Taken out, because the typed decoders insist on their own version.
    let mut take = |key: &str| map.remove(key).and_then(|v| v.as_str().map(str::to_owned));
    let own = take("apiVersion").zip(take("kind"));
    let Some((version, kind)) = own.or_else(|| item_of.cloned()) else { return Err(not_an_object) };
    if let Some(item_kind) = kind.strip_suffix("List")
        && let Some(Value::Array(items)) = map.remove("items")
    {
        let item_type = (version, item_kind.to_owned());
        let item_of = Some(&item_type).filter(|_| !item_kind.is_empty());
        return items.into_iter().try_for_each(|item| object(item, document, item_of, found));
    }
    let object = match (version.as_str(), kind.as_str()) {
        ("v1", "Service") => decode::<api::Service>(value),
        ("v1", "Node") => decode::<api::Node>(value),
        ("v1", "Pod") => decode::<Pod>(value),
        ("v1", "Namespace") => decode::<Namespace>(value),
        ("discovery.k8s.io/v1", "EndpointSlice") => decode::<api::EndpointSlice>(value),
        ("networking.k8s.io/v1" | "networking.k8s.io/v1beta1", "ServiceCIDR") => {
            decode::<api::ServiceCidr>(value)
        }
        _ => {
            debug!(version, kind, document, "manifest of a kind that is not used");
            return Ok(());
        }
    };
    found.push(object);
    Ok(())
}

fn decode<K: Convert + DeserializeOwned>(value: Value) -> Found {
    let key = key::<K>(&value);
    match serde_path_to_error::deserialize::<_, K>(value) {
        Ok(object) => Found::of(&object),
        Err(error) => Found { key, change: Err(malformed(&error)), ignored: Vec::new(), triggered: None },
    }
}

/// The name of an object that may not decode: a refused object keeps its last good state,
/// for which it has to be recognised.
fn key<K: Convert>(value: &Value) -> ObjectKey {
    let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default().to_owned();
    let namespace = match text("namespace") {
        _ if !K::KIND.is_namespaced() => String::new(),
        empty if empty.is_empty() => "default".to_owned(),
        namespace => namespace,
    };
    ObjectKey { kind: K::KIND, name: ObjectName::new(namespace, text("name")) }
}

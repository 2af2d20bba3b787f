//! From the text of a configuration file to its two documents. Knows the form – which
//! kinds there are, that unknown fields are errors – and nothing of the meaning.

use serde::de::DeserializeOwned;
use serde_norway::Value;

use super::{
    errors::{ConfigError, Problems},
    kube_proxy::KubeProxyConfiguration,
    shunt::ShuntConfiguration,
};

/// What a file holds.
#[derive(Debug, Default)]
pub(super) struct Documents {
    /// The document of kind KubeProxyConfiguration, or its defaults.
    pub(super) kube_proxy: KubeProxyConfiguration,
    /// Its fields as they were written, without kind and version.
    pub(super) kube_proxy_fields: Value,
    /// The document of kind ShuntConfiguration, or its defaults.
    pub(super) shunt: ShuntConfiguration,
}

/// Reads all documents of `text`. What is wrong with single fields goes to `problems`.
pub(super) fn read(text: &str, problems: &mut Problems) -> Result<Documents, ConfigError> {
    let mut documents = Documents::default();
    let mut seen = Vec::new();
    for (index, document) in serde_norway::Deserializer::from_str(text).enumerate() {
        let value = <Value as serde::Deserialize>::deserialize(document)
            .map_err(|source| ConfigError::Syntax { document: index + 1, source })?;
        if value.is_null() {
            continue;
        }
        let mut value = without_nulls(value);
        let kind = take_kind(&mut value, index + 1)?;
        if seen.contains(&kind) {
            return Err(ConfigError::Twice(kind.name()));
        }
        seen.push(kind);
        match kind {
            Kind::KubeProxy => {
                documents.kube_proxy = decode(value.clone(), problems);
                documents.kube_proxy_fields = value;
            }
            Kind::Shunt => documents.shunt = decode(value, problems),
        }
    }
    Ok(documents)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    KubeProxy,
    Shunt,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::KubeProxy => "KubeProxyConfiguration",
            Kind::Shunt => "ShuntConfiguration",
        }
    }
}

fn take_kind(value: &mut Value, document: usize) -> Result<Kind, ConfigError> {
    let mut take = |key: &str| {
        let taken = value.as_mapping_mut().and_then(|m| m.shift_remove(key));
        taken.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let (version, kind) = (take("apiVersion"), take("kind"));
    match (version.as_str(), kind.as_str()) {
        ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration") => Ok(Kind::KubeProxy),
        ("shunt.dev/v1alpha1", "ShuntConfiguration") => Ok(Kind::Shunt),
        _ => Err(ConfigError::Kind { document, version, kind }),
    }
}

/// `null` leaves a field at its default, as it does for kube-proxy; generated files are full of it.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Mapping(map) => {
            let kept = map.into_iter().filter(|(_, v)| !v.is_null());
            Value::Mapping(kept.map(|(k, v)| (k, without_nulls(v))).collect())
        }
        other => other,
    }
}

/// Decodes one document; a field of the wrong type leaves the whole document at its defaults.
fn decode<T: DeserializeOwned + Default>(value: Value, problems: &mut Problems) -> T {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
    let decoded = serde_ignored::deserialize(tracked, |path| unknown.push(path.to_string()));
    for path in unknown {
        problems.add(path, "is not a field of this document");
    }
    decoded.unwrap_or_else(|error: serde_norway::Error| {
        problems.add(track.path().to_string(), error);
        T::default()
    })
}

#[cfg(test)]
mod tests {
    use super::{super::duration::GoDuration, *};

    fn paths(text: &str) -> Vec<String> {
        let mut problems = Problems::default();
        read(text, &mut problems).unwrap();
        problems.into_iter().map(|p| p.path).collect()
    }

    const KUBE_PROXY: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    const SHUNT: &str = "apiVersion: shunt.dev/v1alpha1\nkind: ShuntConfiguration\n";

    #[test]
    fn nulls_are_defaults() {
        let text = format!("{KUBE_PROXY}nodePortAddresses: null\nconntrack: {{min: null, udpTimeout: 5s}}\n");
        let mut problems = Problems::default();
        let read = read(&text, &mut problems).unwrap();
        assert!(problems.is_empty());
        assert_eq!(read.kube_proxy.conntrack.min, 131_072);
        assert_eq!(read.kube_proxy.conntrack.udp_timeout, GoDuration::from_secs(5));
    }

    #[test]
    fn unknown_fields_of_both_documents_are_named_together() {
        let text = format!("{KUBE_PROXY}conntrack: {{mni: 1}}\nnope: 1\n---\n{SHUNT}socketLb: all\n");
        assert_eq!(paths(&text), ["conntrack.mni", "nope", "socketLb"]);
    }

    #[test]
    fn a_wrong_type_is_named_by_its_path() {
        assert_eq!(paths(&format!("{KUBE_PROXY}conntrack: {{min: many}}\n")), ["conntrack.min"]);
        assert_eq!(paths(&format!("{SHUNT}interfaces: {{pod: [1]}}\n")), ["interfaces.pod[0]"]);
        assert_eq!(paths(&format!("{KUBE_PROXY}iptables: {{syncPeriod: soon}}\n")), ["iptables.syncPeriod"]);
    }

    #[test]
    fn other_kinds_and_doubles_are_refused() {
        let mut problems = Problems::default();
        let error = read("apiVersion: v1\nkind: Pod\n", &mut problems).unwrap_err();
        assert!(matches!(error, ConfigError::Kind { document: 1, .. }), "{error}");
        let error = read(&format!("{SHUNT}---\n{SHUNT}"), &mut problems).unwrap_err();
        assert!(matches!(error, ConfigError::Twice("ShuntConfiguration")), "{error}");
        assert!(matches!(read("a: [", &mut problems), Err(ConfigError::Syntax { document: 1, .. })));
    }
}

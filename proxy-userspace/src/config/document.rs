//! From the text of a configuration file to its two documents. Knows the form – which
//! kinds there are, that unknown fields are errors – and nothing of the meaning.

use serde::de::DeserializeOwned;
use serde_norway::Value;
use serde_path_to_error::Segment;

use super::{
    errors::{ConfigError, Problems},
    kube_proxy::KubeProxyConfiguration,
    overlay::FlagValue,
    shunt::ShuntConfiguration,
};

/// What a file and flags hold.
#[derive(Debug, Default)]
pub(super) struct Documents {
    /// The document of kind KubeProxyConfiguration, or its defaults.
    pub(super) kube_proxy: KubeProxyConfiguration,
    /// Its fields as they were written, without kind and version.
    pub(super) kube_proxy_fields: Value,
    /// There is such a document, or a flag that stands for a field of it.
    pub(super) has_kube_proxy: bool,
    /// Paths in it that lead to no field. kube-proxy, too, lets them pass with a warning, so that
    /// a file outlives the fields of its day.
    pub(super) unknown: Vec<String>,
    /// The document of kind ShuntConfiguration, or its defaults.
    pub(super) shunt: ShuntConfiguration,
    /// Its fields as they were written, without kind and version.
    pub(super) shunt_fields: Value,
}

/// Reads all documents of `text`, with `flags` laid over kube-proxy's. What is wrong with
/// single fields goes to `problems`.
pub(super) fn read(
    text: &str,
    flags: &[&FlagValue],
    problems: &mut Problems,
) -> Result<Documents, ConfigError> {
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
            Kind::KubeProxy => documents.kube_proxy_fields = value,
            Kind::Shunt => documents.shunt_fields = value,
        }
    }
    documents.has_kube_proxy = seen.contains(&Kind::KubeProxy) || !flags.is_empty();
    flags.iter().for_each(|flag| flag.lay_over(&mut documents.kube_proxy_fields));
    (documents.kube_proxy, documents.unknown) = decode(documents.kube_proxy_fields.clone(), problems);
    let unknown;
    (documents.shunt, unknown) = decode(documents.shunt_fields.clone(), problems);
    for path in unknown {
        problems.add(path, "is not a field of ShuntConfiguration");
    }
    Ok(documents)
}

/// What was written at a path.
pub(super) fn written<'a>(fields: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(fields, |value, key| value.get(key))
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

/// Decodes one document and names the paths that lead to no field. A value of the wrong type is
/// a problem, and left out so that the others are still looked at.
fn decode<T: DeserializeOwned + Default>(mut value: Value, problems: &mut Problems) -> (T, Vec<String>) {
    while !value.is_null() {
        let mut unknown = Vec::new();
        let mut track = serde_path_to_error::Track::new();
        let tracked = serde_path_to_error::Deserializer::new(value.clone(), &mut track);
        let decoded: Result<T, serde_norway::Error> =
            serde_ignored::deserialize(tracked, |path| unknown.push(path.to_string()));
        match decoded {
            Ok(decoded) => return (decoded, unknown),
            Err(error) => {
                let path = track.path();
                problems.add(path.to_string(), error);
                if !remove(&mut value, path.iter()) {
                    break;
                }
            }
        }
    }
    (T::default(), Vec::new())
}

/// Removes the field a path leads to; of a list, the whole.
fn remove<'a>(value: &mut Value, mut path: impl Iterator<Item = &'a Segment>) -> bool {
    let Some(Segment::Map { key }) = path.next() else { return false };
    let Some(map) = value.as_mapping_mut() else { return false };
    let removed_inside = map.get_mut(key.as_str()).is_some_and(|inner| remove(inner, path));
    removed_inside || map.shift_remove(key.as_str()).is_some()
}

#[cfg(test)]
mod tests {
    use super::{super::duration::GoDuration, *};

    fn paths(text: &str) -> Vec<String> {
        let mut problems = Problems::default();
        read(text, &[], &mut problems).unwrap();
        problems.into_iter().map(|p| p.path).collect()
    }

    const KUBE_PROXY: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    const SHUNT: &str = "apiVersion: shunt.dev/v1alpha1\nkind: ShuntConfiguration\n";

    #[test]
    fn nulls_are_defaults() {
        let text = format!("{KUBE_PROXY}nodePortAddresses: null\nconntrack: {{min: null, udpTimeout: 5s}}\n");
        let mut problems = Problems::default();
        let read = read(&text, &[], &mut problems).unwrap();
        assert!(problems.is_empty());
        assert_eq!(read.kube_proxy.conntrack.min, 131_072);
        assert_eq!(read.kube_proxy.conntrack.udp_timeout, GoDuration::from_secs(5));
    }

    #[test]
    fn unknown_fields_are_named_by_their_paths() {
        let text = format!(
            "{KUBE_PROXY}conntrack: {{mni: 1}}\nnope: 1\n---\n{SHUNT}socketLb: all\nmaps: {{x: 1}}\n"
        );
        assert_eq!(paths(&text), ["socketLb", "maps.x"]);
        let read = read(&text, &[], &mut Problems::default()).unwrap();
        assert_eq!(read.unknown, ["conntrack.mni", "nope"]);
    }

    #[test]
    fn every_wrong_type_is_named_and_the_rest_is_read() {
        let text = format!(
            "{KUBE_PROXY}conntrack: {{min: many, maxPerCore: 3000000000, udpTimeout: 5s}}\noomScoreAdj: 1.5\n"
        );
        let mut problems = Problems::default();
        let read = read(&text, &[], &mut problems).unwrap();
        let mut paths: Vec<_> = problems.into_iter().map(|p| p.path).collect();
        paths.sort();
        assert_eq!(paths, ["conntrack.maxPerCore", "conntrack.min", "oomScoreAdj"]);
        assert_eq!(read.kube_proxy.conntrack.udp_timeout, GoDuration::from_secs(5));
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
        let error = read("apiVersion: v1\nkind: Pod\n", &[], &mut problems).unwrap_err();
        assert!(matches!(error, ConfigError::Kind { document: 1, .. }), "{error}");
        let error = read(&format!("{SHUNT}---\n{SHUNT}"), &[], &mut problems).unwrap_err();
        assert!(matches!(error, ConfigError::Twice("ShuntConfiguration")), "{error}");
        assert!(matches!(read("a: [", &[], &mut problems), Err(ConfigError::Syntax { document: 1, .. })));
    }
}

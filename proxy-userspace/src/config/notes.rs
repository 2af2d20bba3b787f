//! What an operator should know about a configuration that is right: fields that mean
//! something else here, or nothing.

use std::fmt;

use serde::Serialize;
use serde_norway::Value;

use super::{
    document::Documents,
    fields::{self, Fate, KUBE_PROXY},
    gates,
    kube_proxy::KubeProxyConfiguration,
    overlay::FlagValue,
};

/// Why a field is worth a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It means something else than in kube-proxy.
    Mapped,
    /// It changes nothing here.
    NoEffect,
    /// It would count in another mode.
    OtherMode,
    /// There is no such field; kube-proxy only warns of it, too.
    Unknown,
    /// A flag that does not count because there is a file.
    IgnoredFlag,
}

/// Something worth knowing about a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Its path in the file, or the flag.
    pub field: String,
    /// Why this is worth a note.
    pub reason: Reason,
    /// What the field means here.
    pub meaning: String,
}

impl Note {
    fn new(field: impl Into<String>, reason: Reason, meaning: impl Into<String>) -> Self {
        Self { field: field.into(), reason, meaning: meaning.into() }
    }

    /// True where the operator gets what was asked for, if by other means.
    pub fn is_served(&self) -> bool {
        self.reason == Reason::Mapped
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.meaning)
    }
}

/// All there is to know.
pub(super) fn notes(documents: &Documents, ignored: &[&FlagValue]) -> Vec<Note> {
    let file = &documents.kube_proxy;
    let mut notes = Vec::new();
    for path in set(file) {
        let Some(field) = fields::find(KUBE_PROXY, &path) else { continue };
        if let Some(gate) = path.strip_prefix("featureGates.") {
            notes.extend(gate_note(gate));
        } else if let Some(modes) = elsewhere(file, &path) {
            let mode = &file.mode;
            let meaning = match mode.as_str() {
                "" => format!("is read in {modes}, not without a mode"),
                _ => format!("is read in {modes}, not in mode {mode}"),
            };
            notes.push(Note::new(path, Reason::OtherMode, meaning));
        } else {
            notes.extend(note(file, path, field));
        }
    }
    if documents.has_kube_proxy && file.mode.is_empty() && file.node_port_addresses.is_empty() {
        let meaning = "is empty, and so is mode: NodePorts are served on the node's primary addresses; \
                       mode iptables, or [0.0.0.0/0, '::/0'] here, serves them on all";
        notes.push(Note::new("nodePortAddresses", Reason::Mapped, meaning));
    }
    let unknown = "is not a field of KubeProxyConfiguration and changes nothing";
    notes.extend(documents.unknown.iter().map(|path| Note::new(path, Reason::Unknown, unknown)));
    let flag = "does not count beside --config, as with kube-proxy; write it into the file";
    notes.extend(
        ignored.iter().map(|given| Note::new(format!("--{}", given.flag), Reason::IgnoredFlag, flag)),
    );
    notes
}

fn note(file: &KubeProxyConfiguration, path: String, field: &fields::Field) -> Option<Note> {
    let reason = match field.fate {
        Fate::Honoured => return None,
        Fate::Mapped => Reason::Mapped,
        Fate::Unused => Reason::NoEffect,
    };
    // The rules are those of this mode, and ranges mean what they say in every mode.
    if (path == "mode" && file.mode == "nftables") || path == "nodePortAddresses" {
        return None;
    }
    Some(Note::new(path, reason, field.meaning))
}

fn gate_note(gate: &str) -> Option<Note> {
    let note = || Note::new(format!("featureGates.{gate}"), Reason::NoEffect, "changes nothing here");
    (gate != gates::EXTERNAL_IPS).then(note)
}

/// The modes in which a field counts, if the mode of the file is none of them.
fn elsewhere(file: &KubeProxyConfiguration, path: &str) -> Option<&'static str> {
    let (section, name) = path.split_once('.')?;
    let (modes, words): (&[&str], _) = match (section, name) {
        ("iptables", "masqueradeAll") => (&["", "iptables", "ipvs"], "modes iptables and ipvs"),
        ("iptables", "masqueradeBit") => return None,
        ("iptables", _) => (&["", "iptables"], "mode iptables"),
        ("ipvs", "syncPeriod" | "minSyncPeriod") => (&["ipvs"], "mode ipvs"),
        ("ipvs", _) => (&["", "ipvs"], "mode ipvs"),
        ("nftables", _) => (&["", "nftables"], "mode nftables"),
        _ => return None,
    };
    (!modes.contains(&file.mode.as_str())).then_some(words)
}

/// Paths of the fields that are written and differ from kube-proxy's default.
fn set(file: &KubeProxyConfiguration) -> Vec<String> {
    let value = |file: &KubeProxyConfiguration| {
        serde_norway::to_value(file).expect("plain structs of plain values always serialize")
    };
    let mut found = Vec::new();
    collect("", &value(file), &value(&KubeProxyConfiguration::default()), &mut found);
    found
}

fn collect(path: &str, value: &Value, default: &Value, found: &mut Vec<String>) {
    if let Value::Mapping(map) = value {
        for (key, value) in map {
            let key = key.as_str().unwrap_or_default();
            let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            collect(&path, value, default.get(key).unwrap_or(&Value::Null), found);
        }
    } else if value != default && !is_empty(value) {
        found.push(path.to_owned());
    }
}

/// Generated files write every field; these values mean "not set".
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => ["", "0", "0s"].contains(&s.as_str()),
        Value::Sequence(items) => items.is_empty(),
        _ => false,
    }
}

//! kube-proxy's flags, laid over its document before that is read, so that one validation
//! serves both.

use serde_norway::{Mapping, Value};

/// A flag of kube-proxy that was given.
#[derive(Clone, Debug, PartialEq)]
pub struct FlagValue {
    /// Its name, without dashes.
    pub flag: &'static str,
    /// The fields it stands for, as paths in the document.
    pub paths: &'static [&'static str],
    /// Its value, as the document would have it.
    pub value: Value,
}

impl FlagValue {
    /// Flags about the log count beside a file, too.
    pub(super) fn counts_beside_a_file(&self) -> bool {
        self.paths.iter().any(|path| path.starts_with("logging."))
    }

    /// Writes the value into a document.
    pub(super) fn lay_over(&self, document: &mut Value) {
        for path in self.paths {
            put(document, path, self.value.clone());
        }
    }
}

fn put(document: &mut Value, path: &str, value: Value) {
    if !document.is_mapping() {
        *document = Value::Mapping(Mapping::new());
    }
    let Value::Mapping(map) = document else { return };
    match path.split_once('.') {
        Some((section, rest)) => {
            put(map.entry(section.into()).or_insert(Value::Null), rest, value);
        }
        None => drop(map.insert(path.into(), value)),
    }
}

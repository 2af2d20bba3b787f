//! What can be wrong with a configuration.

use std::{fmt, path::PathBuf};

use thiserror::Error;

/// Why there is no configuration to run with.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The file is not YAML.
    #[error("document {document} is not valid YAML: {source}")]
    Syntax {
        /// Position in the file, from 1.
        document: usize,
        /// With line and column.
        source: serde_norway::Error,
    },
    /// A document of a kind that does not belong here.
    #[error(
        "document {document} has apiVersion {version:?} and kind {kind:?}; expected KubeProxyConfiguration \
         (kubeproxy.config.k8s.io/v1alpha1) or ShuntConfiguration (shunt.dev/v1alpha1)"
    )]
    Kind {
        /// Position in the file, from 1.
        document: usize,
        /// What it says.
        version: String,
        /// What it says.
        kind: String,
    },
    /// The same kind twice.
    #[error("{0} appears twice in the file")]
    Twice(&'static str),
    /// Fields with wrong values, all of them.
    #[error("{0}")]
    Invalid(Problems),
}

/// One field with a wrong value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field, as a path in the file: `conntrack.min`, `nodePortAddresses[0]`.
    pub path: String,
    /// What is wrong with it.
    pub reason: String,
}

/// All wrong fields of a configuration, so that one look at the report mends the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Notes a wrong field.
    pub fn add(&mut self, path: impl Into<String>, reason: impl fmt::Display) {
        self.0.push(Problem { path: path.into(), reason: reason.to_string() });
    }

    /// Notes a wrong field unless `ok`.
    pub fn check(&mut self, ok: bool, path: &str, reason: &str) {
        if !ok {
            self.add(path, reason);
        }
    }

    /// Calls fields by other names where `name` has one.
    pub(super) fn rename(&mut self, name: impl Fn(&str) -> Option<String>) {
        for problem in &mut self.0 {
            if let Some(name) = name(&problem.path) {
                problem.path = name;
            }
        }
    }

    /// True when nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{}: {}", problem.path, problem.reason)?;
        }
        Ok(())
    }
}

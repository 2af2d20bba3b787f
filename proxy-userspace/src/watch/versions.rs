//! How far the watches have come, by kind: the `resourceVersion` of the last object that each has
//! shown. Versions of one kind are numbers that grow (KEP-5504); what is no number says nothing.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::convert::Kind;

/// The number of an object's version, if it is one.
pub(super) fn of(meta: &ObjectMeta) -> Option<u64> {
    meta.resource_version.as_deref()?.parse().ok()
}

/// The latest version of each kind. None of what comes from manifests, whose objects have no versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions(BTreeMap<Kind, u64>);

impl Versions {
    /// Notes a version; an earlier one says nothing new.
    pub(super) fn note(&mut self, kind: Kind, version: u64) {
        let latest = self.0.entry(kind).or_default();
        *latest = version.max(*latest);
    }

    /// Nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (kind, version)) in self.0.iter().enumerate() {
            let space = if place == 0 { "" } else { " " };
            write!(f, "{space}{}={version}", kind.name())?;
        }
        Ok(())
    }
}

//! Says what is not taken of objects.

use std::collections::HashMap;

use tracing::warn;

use super::{
    WatchMetrics,
    convert::{Found, ObjectKey, Rejected},
};

/// What was said last of each object that has something wrong, so that it is said once: an object may change every
/// second, and what is wrong with it stay.
#[derive(Debug, Default)]
pub(super) struct Told(HashMap<ObjectKey, Reasons>);

/// Why parts of an object count for nothing, and why it was refused.
type Reasons = (Vec<Rejected>, Option<Rejected>);

impl Told {
    /// Counts what is not taken of an object, and says it in the log if it is not what was said last. True if it was said.
    pub(super) fn tell(&mut self, found: &Found, metrics: &WatchMetrics) -> bool {
        let refused = found.change.as_ref().err();
        found.ignored.iter().for_each(|_| metrics.count_ignored(found.key.kind));
        if refused.is_some() {
            metrics.count_rejected(found.key.kind);
        }
        if found.ignored.is_empty() && refused.is_none() {
            self.0.remove(&found.key);
            return false;
        }
        let reasons = (found.ignored.clone(), refused.cloned());
        if self.0.get(&found.key) == Some(&reasons) {
            return false;
        }
        say(&found.key, &reasons);
        self.0.insert(found.key.clone(), reasons);
        true
    }

    /// Forgets all other objects: they are gone, or all is said anew.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&ObjectKey) -> bool) {
        self.0.retain(|key, _| is_kept(key));
    }
}

fn say(key: &ObjectKey, (ignored, refused): &Reasons) {
    let (kind, namespace, name) = (key.kind.name(), &*key.name.namespace, &*key.name.name);
    for reason in ignored {
        warn!(kind, namespace, name, %reason, "ignored, the rest counts");
    }
    if let Some(reason) = refused {
        warn!(kind, namespace, name, %reason, "rejected");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::ObjectName, watch::convert::Kind};

    #[test]
    fn what_stays_wrong_is_said_once() {
        let (mut told, metrics) = (Told::default(), WatchMetrics::default());
        let key = ObjectKey { kind: Kind::EndpointSlice, name: ObjectName::new("ns", "a") };
        let found = |refused: Option<Rejected>, ignored: &[Rejected]| Found {
            key: key.clone(),
            change: refused.map_or_else(|| Ok(key.clone().gone()), Err),
            ignored: ignored.into(),
            triggered: None,
        };
        let orphan = || found(Some(Rejected::NoServiceLabel), &[]);
        assert!(told.tell(&orphan(), &metrics) && !told.tell(&orphan(), &metrics));
        assert_eq!(metrics.rejected(Kind::EndpointSlice), 2, "each is counted");
        assert!(told.tell(&found(None, &[Rejected::NoName]), &metrics), "something else is wrong");
        assert!(!told.tell(&found(None, &[Rejected::NoName]), &metrics));
        assert!(!told.tell(&found(None, &[]), &metrics), "all is well");
        assert!(told.tell(&orphan(), &metrics), "again");
        told.retain(|other| *other != key);
        assert!(told.tell(&orphan(), &metrics), "another of that name");
    }
}

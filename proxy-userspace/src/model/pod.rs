//! Pods, and the namespaces they are in, as far as socket LB depends on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::ObjectName;

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Name of the object.
    pub name: ObjectName,
    /// The node it runs on, if the source says so; sources need not report pods of others.
    pub node: Option<Arc<str>>,
    /// The UID by which kubelet names its cgroup; empty in manifests that have none.
    pub uid: Arc<str>,
    /// Whether it wants socket LB; without an opinion its namespace decides.
    pub socket_lb: Option<bool>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Name of the object.
    pub name: Arc<str>,
    /// Whether its pods get socket LB unless they say otherwise.
    pub socket_lb: Option<bool>,
}

/// UIDs of the pods of a node that get no socket LB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exempt {
    /// Those that want none.
    pub pods: BTreeSet<Arc<str>>,
    /// Those whose namespace decides, while nobody knows what it wants: with them it stays as it is.
    pub undecided: BTreeSet<Arc<str>>,
}

/// All pods and namespaces.
#[derive(Debug, Default)]
pub(super) struct Pods {
    pods: BTreeMap<ObjectName, Pod>,
    /// Those that have an opinion.
    namespaces: BTreeMap<Arc<str>, bool>,
}

impl Pods {
    /// True if something changed; so for all of these.
    pub(super) fn put(&mut self, pod: Pod) -> bool {
        self.pods.insert(pod.name.clone(), pod.clone()) != Some(pod)
    }

    pub(super) fn remove(&mut self, name: &ObjectName) -> bool {
        self.pods.remove(name).is_some()
    }

    pub(super) fn put_namespace(&mut self, namespace: Namespace) -> bool {
        let old = match namespace.socket_lb {
            Some(on) => self.namespaces.insert(namespace.name, on),
            None => self.namespaces.remove(&namespace.name),
        };
        old != namespace.socket_lb
    }

    pub(super) fn remove_namespace(&mut self, name: &str) -> bool {
        self.namespaces.remove(name).is_some()
    }

    /// The pods on `node` that get no socket LB, where it is not `unknown` what namespaces want.
    pub(super) fn exempt(&self, node: &str, unknown: bool) -> Exempt {
        let here = self.pods.values().filter(|pod| pod.node.as_deref().is_none_or(|name| name == node));
        let mut exempt = Exempt::default();
        for pod in here.filter(|pod| !pod.uid.is_empty()) {
            let namespace = || self.namespaces.get(&pod.name.namespace).copied();
            match pod.socket_lb.or_else(namespace) {
                Some(false) => drop(exempt.pods.insert(pod.uid.clone())),
                None if unknown => drop(exempt.undecided.insert(pod.uid.clone())),
                Some(true) | None => (),
            }
        }
        exempt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, uid: &str, node: Option<&str>, socket_lb: Option<bool>) -> Pod {
        let name = ObjectName::new(namespace, uid);
        Pod { name, node: node.map(Into::into), uid: uid.into(), socket_lb }
    }

    fn texts(uids: &BTreeSet<Arc<str>>) -> Vec<&str> {
        uids.iter().map(|uid| &**uid).collect()
    }

    #[test]
    fn a_pod_overrides_its_namespace() {
        let mut pods = Pods::default();
        let off = Namespace { name: "mesh".into(), socket_lb: Some(false) };
        assert!(pods.put_namespace(off.clone()));
        assert!(!pods.put_namespace(off));
        pods.put(pod("mesh", "silent", None, None));
        pods.put(pod("mesh", "wants-it", None, Some(true)));
        pods.put(pod("other", "silent-too", Some("here"), None));
        pods.put(pod("other", "does-not", Some("here"), Some(false)));
        pods.put(pod("other", "elsewhere", Some("there"), Some(false)));
        assert_eq!(texts(&pods.exempt("here", false).pods), ["does-not", "silent"]);
        assert!(pods.remove_namespace("mesh"));
        assert!(pods.remove(&ObjectName::new("other", "does-not")));
        assert_eq!(pods.exempt("here", false), Exempt::default());
    }

    #[test]
    fn an_unknown_namespace_decides_nothing() {
        let mut pods = Pods::default();
        pods.put_namespace(Namespace { name: "mesh".into(), socket_lb: Some(false) });
        pods.put(pod("mesh", "known", None, None));
        pods.put(pod("other", "silent", None, None));
        pods.put(pod("other", "elsewhere", Some("there"), None));
        pods.put(pod("other", "wants-it", None, Some(true)));
        pods.put(pod("other", "does-not", None, Some(false)));
        let exempt = pods.exempt("here", true);
        assert_eq!(texts(&exempt.pods), ["does-not", "known"]);
        assert_eq!(texts(&exempt.undecided), ["silent"]);
    }

    #[test]
    fn what_says_nothing_new_changes_nothing() {
        let mut pods = Pods::default();
        assert!(!pods.put_namespace(Namespace { name: "a".into(), socket_lb: None }));
        assert!(pods.put(pod("a", "b", None, None)));
        assert!(!pods.put(pod("a", "b", None, None)));
        assert!(!pods.remove(&ObjectName::new("a", "c")));
    }
}

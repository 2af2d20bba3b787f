//! Rights that come after the agent: what it may not see is unknown to it, and stays as an earlier agent left it.

use anyhow::Result;
use serde_json::{Value, json};
use tests::{agent::SocketLb, probe::Proto};

use crate::{
    CLIENT,
    objects::{service, slice},
    world::{FIRST, SECOND, VIP, World},
};

const NAMESPACE: &str = "default";
const ACCOUNT: &str = "agent";
/// Of no Service, in the range of the API server.
const UNALLOCATED: &str = "172.30.99.99:80";

/// A service account and what it may list and watch.
fn rights(rules: &Value) -> Vec<Value> {
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": NAMESPACE}}),
        json!({"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": ACCOUNT}, "rules": rules}),
        json!({
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": ACCOUNT},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
        }),
    ]
}

fn may_see(group: &str, resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": ["list", "watch"]})
}

#[test]
fn what_may_not_be_seen_stays_as_it_was_and_services_are_served() -> Result<()> {
    let mut world = World::build(SocketLb::Off)?;
    world.put(&[service(), slice(&[FIRST])])?;
    world.start_agent()?;
    world.soon_reaches("first", Proto::Tcp, CLIENT, VIP)?;
    world.soon_dropped("unallocated-address", Proto::Tcp, CLIENT, UNALLOCATED)?;
    world.stop_agent()?;

    let endpoint_slices = may_see("discovery.k8s.io", &["endpointslices"]);
    world.install(&rights(&json!([may_see("", &["services", "nodes"]), endpoint_slices])))?;
    world.put(&[slice(&[SECOND])])?;
    world.start_agent_as(NAMESPACE, ACCOUNT)?;
    world.soon_reaches("second", Proto::Tcp, CLIENT, VIP)?;
    for kind in ["ServiceCIDR", "Pod", "Namespace"] {
        world.soon_shows(&format!("shunt_watch_up{{kind=\"{kind}\"}} 0"))?;
    }
    world.soon_dropped("unallocated-address", Proto::Tcp, CLIENT, UNALLOCATED)?;

    let all = may_see("", &["services", "nodes", "pods", "namespaces"]);
    let ranges = may_see("networking.k8s.io", &["servicecidrs"]);
    world.install(&rights(&json!([all, endpoint_slices, ranges])))?;
    for kind in ["ServiceCIDR", "Pod", "Namespace"] {
        world.soon_shows(&format!("shunt_watch_up{{kind=\"{kind}\"}} 1"))?;
    }
    world.soon_dropped("unallocated-address", Proto::Tcp, CLIENT, UNALLOCATED)
}

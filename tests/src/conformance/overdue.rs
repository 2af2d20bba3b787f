//! Makes an agent lag behind for real: the kernel refuses writes to a table, and one more service wants some.

use super::case::ProxyState;
use crate::{agent::Agent, freeze::freeze};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// Lets a change count as late after two of these.
const SYNC_PERIOD: &str = "500ms";

/// Sees to it in the agent's configuration that a change is late soon.
pub(super) fn configure(kube_proxy: &mut Value) {
    kube_proxy["nftables"] = json!({"syncPeriod": SYNC_PERIOD, "minSyncPeriod": "100ms"});
}

/// Adds a service that cannot be written to `objects`, which the agent has written before.
pub(super) fn bring_about(agent: &mut Agent, mut objects: Vec<Value>, state: ProxyState) -> Result<()> {
    let (table, families, addresses) = match state {
        ProxyState::Overdue => {
            ("frontends_v4", json!(["IPv4", "IPv6"]), json!(["172.30.0.250", "fd00:96::250"]))
        }
        ProxyState::OverdueV6 => ("frontends_v6", json!(["IPv6"]), json!(["fd00:96::250"])),
    };
    freeze(&agent.map(table)).context("make writes fail")?;
    objects.push(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": "late"},
        "spec": {
            "clusterIP": addresses[0],
            "clusterIPs": addresses,
            "ipFamilies": families,
            "ports": [{"port": 80}],
        },
    }));
    agent.write(&objects)?;
    agent.wait_for("that a service waits for its rows", |line| {
        line.message().starts_with("cannot write rows of a service")
    })
}

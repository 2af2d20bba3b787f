//! Makes an agent lag behind for real: its tables of frontends are small, and one more
//! service has more ports than they have room for.

use super::case::ProxyState;
use crate::agent::Agent;
use anyhow::Result;
use serde_json::{Value, json};

/// Room for the services of a case and not for one of that many ports.
const FRONTENDS: u16 = 64;

/// Lets a change count as late after two of these.
const SYNC_PERIOD: &str = "500ms";

/// Sees to it in the agent's configuration that [`bring_about`] can succeed.
pub(super) fn configure(kube_proxy: &mut Value, shunt: &mut Value) {
    kube_proxy["nftables"] = json!({"syncPeriod": SYNC_PERIOD, "minSyncPeriod": "100ms"});
    shunt["maps"]["frontends"] = json!(FRONTENDS);
}

/// Adds the service that does not fit to `objects`, which the agent has written before.
pub(super) fn bring_about(agent: &mut Agent, mut objects: Vec<Value>, state: ProxyState) -> Result<()> {
    objects.push(too_large(state));
    agent.write(&objects)?;
    agent.wait_for("that a service waits for its rows", |line| {
        line.message().starts_with("cannot write rows of a service")
    })
}

fn too_large(state: ProxyState) -> Value {
    let (families, addresses) = match state {
        ProxyState::Overdue => (json!(["IPv4", "IPv6"]), json!(["172.30.0.250", "fd00:96::250"])),
        ProxyState::OverdueV6 => (json!(["IPv6"]), json!(["fd00:96::250"])),
    };
    let ports = (1..=FRONTENDS).map(|port| json!({"name": format!("p{port}"), "port": port}));
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": "too-large"},
        "spec": {
            "clusterIP": addresses[0],
            "clusterIPs": addresses,
            "ipFamilies": families,
            "ports": ports.collect::<Vec<_>>(),
        },
    })
}

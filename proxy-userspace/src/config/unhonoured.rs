//! Names the fields of kube-proxy's file that ask for something and get nothing.

use serde_norway::Value;

use super::{effective::ipvs_counts, kube_proxy::KubeProxyConfiguration};

/// Fields with an effect, and whole sections of them.
const HONOURED: &[&str] = &[
    "bindAddressHardFail",
    "clientConnection.kubeconfig",
    "clusterCIDR",
    "conntrack.tcpCloseWaitTimeout",
    "conntrack.tcpEstablishedTimeout",
    "conntrack.udpStreamTimeout",
    "conntrack.udpTimeout",
    "detectLocal.bridgeInterface",
    "detectLocal.interfaceNamePrefix",
    "detectLocalMode",
    "healthzBindAddress",
    "hostnameOverride",
    "iptables.masqueradeAll",
    "iptables.minSyncPeriod",
    "iptables.syncPeriod",
    "ipvs.minSyncPeriod",
    "ipvs.syncPeriod",
    "logging.format",
    "metricsBindAddress",
    "nftables.masqueradeAll",
    "nftables.minSyncPeriod",
    "nftables.syncPeriod",
    "nodePortAddresses",
];

/// Fields with an effect unless the mode is another.
const HONOURED_OF_IPVS: &[&str] = &["ipvs.tcpFinTimeout", "ipvs.tcpTimeout", "ipvs.udpTimeout"];

/// Paths of the fields that differ from kube-proxy's default and are not honoured.
pub(super) fn fields(file: &KubeProxyConfiguration) -> Vec<String> {
    let value = |file: &KubeProxyConfiguration| {
        serde_norway::to_value(file).expect("plain structs of plain values always serialize")
    };
    let mut found = Vec::new();
    collect("", &value(file), &value(&KubeProxyConfiguration::default()), &mut found);
    // The behaviour is that of the nftables mode, whatever the mode.
    found.retain(|path| path != "mode" || file.mode != "nftables");
    found.retain(|path| !ipvs_counts(file) || !HONOURED_OF_IPVS.contains(&path.as_str()));
    found
}

fn collect(path: &str, value: &Value, default: &Value, found: &mut Vec<String>) {
    if let Value::Mapping(map) = value {
        for (key, value) in map {
            let key = key.as_str().unwrap_or_default();
            let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            collect(&path, value, default.get(key).unwrap_or(&Value::Null), found);
        }
    } else if value != default && !is_empty(value) && !HONOURED.contains(&path) {
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

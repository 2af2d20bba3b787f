//! The services that are asked: one that is always there, and one for each sample.

use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};

/// Where they are.
pub(super) const NAMESPACE: &str = "bench";
/// The port of every service; backends listen on the same.
pub(super) const PORT: u16 = 7000;

/// A service that is asked.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    name: String,
    address: Ipv4Addr,
}

impl Asked {
    /// The one that is there from the beginning.
    pub(super) fn target() -> Self {
        Self { name: "target".into(), address: Ipv4Addr::new(10, 96, 1, 1) }
    }

    /// One of those that are created, with a number that none had before.
    pub(super) fn sample(number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        Self { name: format!("sample-{number:05}"), address: Ipv4Addr::new(10, 96, 2 + high, low) }
    }

    /// Where it answers.
    pub(super) fn frontend(&self) -> SocketAddr {
        (self.address, PORT).into()
    }

    /// The Service.
    pub(super) fn service(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {
                "clusterIP": self.address.to_string(),
                "ipFamilyPolicy": "SingleStack",
                "ports": [{"name": "who", "protocol": "UDP", "port": PORT, "targetPort": PORT}],
            },
        })
    }

    /// Its slice, with one backend on the second node.
    pub(super) fn slice(&self, backend: Ipv4Addr) -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": self.name,
                "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": self.name},
            },
            "addressType": "IPv4",
            "endpoints": [{
                "addresses": [backend.to_string()],
                "nodeName": "node2",
                "conditions": {"ready": true},
            }],
            "ports": [{"name": "who", "protocol": "UDP", "port": PORT}],
        })
    }
}

//! Fillers by the thousand, as copies of one that the API server has made itself.
//!
//! They are put into etcd directly. For each service that it creates, this API server counts all
//! addresses that are in use: 50,000 would take half an hour. What it writes of a filler
//! (defaults, managed fields) is taken over, so that lists are what they would be.

use super::filler;
use crate::late;
use anyhow::{Context as _, Result, ensure};
use http::Request;
use k8s_openapi::ByteString;
use kube::Client;
use serde_json::{Value, json};

/// Fillers in one request; etcd takes no more than 128 writes.
const AT_A_TIME: usize = 25;

/// What the API server keeps of one filler.
pub(super) struct Template {
    service: Value,
    slice: Value,
    address: Value,
}

impl Template {
    /// Takes the first filler, which exists.
    pub(super) async fn read(client: &Client) -> Result<Self> {
        let name = filler::name(0);
        let namespace = super::NAMESPACE;
        let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}");
        let addresses = format!("/apis/networking.k8s.io/v1/ipaddresses/{}", filler::address(0));
        Ok(Self {
            service: get(client, &format!("/api/v1/namespaces/{namespace}/services/{name}")).await?,
            slice: get(client, &slices).await?,
            address: get(client, &addresses).await?,
        })
    }

    /// Keys and values of a copy.
    fn copy(&self, number: u32) -> [(String, Value); 3] {
        let (name, address) = (filler::name(number), filler::address(number).to_string());
        let mut service = copy(&self.service, &name, 1, number);
        service["spec"]["clusterIP"] = json!(address);
        service["spec"]["clusterIPs"] = json!([address]);
        let mut slice = copy(&self.slice, &name, 2, number);
        slice["metadata"]["labels"]["kubernetes.io/service-name"] = json!(name);
        slice["endpoints"] = filler::slice(number)["endpoints"].take();
        let mut allocated = copy(&self.address, &address, 3, number);
        allocated["spec"]["parentRef"]["name"] = json!(name);
        let namespace = super::NAMESPACE;
        [
            (format!("/registry/services/specs/{namespace}/{name}"), service),
            (format!("/registry/endpointslices/{namespace}/{name}"), slice),
            (format!("/registry/ipaddresses/{address}"), allocated),
        ]
    }

    /// Puts copies of the first filler into etcd, until there are so many fillers in all.
    pub(super) async fn put_copies(&self, etcd: &Client, services: u32) -> Result<()> {
        let numbers: Vec<u32> = (1..services).collect();
        for some in numbers.chunks(AT_A_TIME) {
            let rows = some.iter().flat_map(|number| self.copy(*number));
            let writes = rows.map(|(key, value)| {
                let bytes = |text: String| ByteString(text.into_bytes());
                json!({"requestPut": {"key": bytes(key), "value": bytes(value.to_string())}})
            });
            let body = json!({"success": writes.collect::<Vec<_>>()});
            let request = Request::post("/v3/kv/txn").body(serde_json::to_vec(&body)?)?;
            etcd.request_text(request).await.context("write to etcd")?;
        }
        Ok(())
    }
}

/// A copy of an object with a name and an id of its own.
fn copy(object: &Value, name: &str, kind: u8, number: u32) -> Value {
    let mut copy = object.clone();
    copy["metadata"]["name"] = json!(name);
    copy["metadata"]["uid"] = json!(format!("00000000-0000-4000-8000-{kind:04x}{number:08x}"));
    copy
}

async fn get(client: &Client, path: &str) -> Result<Value> {
    let mut object: Value = client.request(Request::get(path).body(Vec::new())?).await?;
    if let Some(metadata) = object["metadata"].as_object_mut() {
        // Of the copy, etcd knows it.
        metadata.remove("resourceVersion");
    }
    Ok(object)
}

/// Whether the API server sees them all. What one request has put into etcd has one revision, and the API server
/// answers for that revision as soon as its cache has the first object of it.
///
/// # Errors
///
/// A late one as long as it sees fewer.
pub(super) async fn ensure_seen(client: &Client, services: u32) -> Result<()> {
    let kinds = [("/api/v1", "services"), ("/apis/discovery.k8s.io/v1", "endpointslices")];
    for (group, kind) in kinds {
        let path = format!("{group}/namespaces/{}/{kind}?limit=1", super::NAMESPACE);
        let list: Value = client.request(Request::get(path).body(Vec::new())?).await?;
        let rest = list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        ensure!(
            rest + 1 == u64::from(services),
            late!("the API server sees {} {kind} of {services}", rest + 1)
        );
    }
    Ok(())
}

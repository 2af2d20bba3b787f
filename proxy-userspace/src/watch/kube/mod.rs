//! A Kubernetes API server as a source. It may be absent at the start, vanish and come
//! back: what was reported stays as it is until the server says otherwise.

mod connection;
mod credentials;
mod events;
mod follow;
mod gather;
mod node_taint;
mod observed;
mod servers;

use std::{path::PathBuf, sync::Arc};

use http::Uri;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{Api, Client, Resource, core::PartialObjectMeta, runtime::watcher};
use thiserror::Error;
use tokio::sync::mpsc;

pub use self::events::{About, Events, Notice};
pub use self::node_taint::NodeTaint;
use self::{
    credentials::Credentials,
    follow::{Follow, follow},
    observed::observed,
};
use super::{
    BATCHES_AHEAD, Batches, WatchMetrics,
    api::{EndpointSlice, Node, Service, ServiceCidr},
    convert::Convert,
    lenient::Lenient,
};

/// kube-proxy's selectors. Slices of headless services are left out by the label that the
/// endpoint controllers copy to them; on services it says nothing. Which proxy a service has, its own label says.
const SERVICES: &str = "!service.kubernetes.io/service-proxy-name";
const SLICES: &str = "!service.kubernetes.io/headless";

/// Events that may wait to be gathered; beyond, the watches wait.
const SIGNALS_AHEAD: usize = 512;

/// Why there is no connection to an API server. That it does not answer is none of these.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kubeconfig is missing or says nothing usable.
    #[error("kubeconfig {path}: {source}", path = path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: kube::config::KubeconfigError,
    },
    /// There is no service account.
    #[error("no --kubeconfig or --manifests was given, and this is not a pod with a service account: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    /// `--master` is no URL.
    #[error("--master {0:?} is not a URL: {1}")]
    Master(String, http::uri::InvalidUri),
    /// Certificates or addresses that cannot be used.
    #[error("cannot set up the connection to the API server: {0}")]
    Client(#[from] kube::Error),
}

/// Prepares the connection: by `kubeconfig`, else by the service account of the pod. `master`
/// is a URL that counts in place of the kubeconfig's; alone it is all there is to know. When that server fails, the
/// `further` ones are asked in turn.
pub async fn connect(
    kubeconfig: Option<PathBuf>,
    master: Option<&str>,
    further: Vec<Uri>,
) -> Result<Client, ConnectError> {
    let parse = |url: &str| url.parse().map_err(|source| ConnectError::Master(url.into(), source));
    let master = master.map(parse).transpose()?;
    credentials::client(Credentials { kubeconfig, master, further }).await
}

/// Starts following services, slices, the node `node_name`, service ranges, and the metadata
/// of the node's pods and of namespaces.
pub fn start(client: &Client, node_name: &str, metrics: Arc<WatchMetrics>) -> Batches {
    let (signals, gathered) = mpsc::channel(SIGNALS_AHEAD);
    let (tx, rx) = mpsc::channel(BATCHES_AHEAD);
    let config = watcher::Config::default;
    let to =
        |config, optional| Follow { config, optional, signals: signals.clone(), metrics: metrics.clone() };
    tokio::spawn(follow(api::<Service>(client, &metrics), to(config().labels(SERVICES), false)));
    tokio::spawn(follow(api::<EndpointSlice>(client, &metrics), to(config().labels(SLICES), false)));
    let this_node = config().fields(&format!("metadata.name={node_name}"));
    tokio::spawn(follow(api::<Node>(client, &metrics), to(this_node, false)));
    tokio::spawn(follow(api::<ServiceCidr>(client, &metrics), to(config(), true)));
    let on_this_node = config().fields(&format!("spec.nodeName={node_name}"));
    tokio::spawn(follow(api::<PartialObjectMeta<Pod>>(client, &metrics), to(on_this_node, true)));
    tokio::spawn(follow(api::<PartialObjectMeta<Namespace>>(client, &metrics), to(config(), true)));
    tokio::spawn(gather::run(gathered, tx, metrics));
    rx
}

/// All objects of a kind, and what is heard of it noted.
fn api<K: Convert + Resource<DynamicType = ()>>(
    client: &Client,
    metrics: &Arc<WatchMetrics>,
) -> Api<Lenient<K>> {
    Api::all(observed(client, K::KIND, metrics))
}

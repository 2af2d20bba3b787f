//! A Kubernetes API server as a source. It may be absent at the start, vanish and come
//! back: what was reported stays as it is until the server says otherwise.

mod credentials;
mod events;
mod follow;
mod gather;
mod node_taint;

use std::{path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{Api, Client, core::PartialObjectMeta, runtime::watcher};
use thiserror::Error;
use tokio::sync::mpsc;

pub use self::events::{About, Events, Notice};
pub use self::node_taint::NodeTaint;
use self::{
    credentials::Credentials,
    follow::{Follow, follow},
};
use super::{
    BATCHES_AHEAD, Batches, WatchMetrics,
    api::{EndpointSlice, Node, Service, ServiceCidr},
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
/// is a URL that counts in place of the kubeconfig's; alone it is all there is to know.
pub async fn connect(kubeconfig: Option<PathBuf>, master: Option<&str>) -> Result<Client, ConnectError> {
    let parse = |url: &str| url.parse().map_err(|source| ConnectError::Master(url.into(), source));
    let master = master.map(parse).transpose()?;
    credentials::client(Credentials { kubeconfig, master }).await
}

/// Starts following services, slices, the node `node_name`, service ranges, and the metadata
/// of the node's pods and of namespaces.
pub fn start(client: &Client, node_name: &str, metrics: Arc<WatchMetrics>) -> Batches {
    let (signals, gathered) = mpsc::channel(SIGNALS_AHEAD);
    let (tx, rx) = mpsc::channel(BATCHES_AHEAD);
    let config = watcher::Config::default;
    let to =
        |config, optional| Follow { config, optional, signals: signals.clone(), metrics: metrics.clone() };
    tokio::spawn(follow::<Service>(Api::all(client.clone()), to(config().labels(SERVICES), false)));
    tokio::spawn(follow::<EndpointSlice>(Api::all(client.clone()), to(config().labels(SLICES), false)));
    let this_node = config().fields(&format!("metadata.name={node_name}"));
    tokio::spawn(follow::<Node>(Api::all(client.clone()), to(this_node, false)));
    tokio::spawn(follow::<ServiceCidr>(Api::all(client.clone()), to(config(), true)));
    let on_this_node = config().fields(&format!("spec.nodeName={node_name}"));
    tokio::spawn(follow::<PartialObjectMeta<Pod>>(Api::all(client.clone()), to(on_this_node, true)));
    tokio::spawn(follow::<PartialObjectMeta<Namespace>>(Api::all(client.clone()), to(config(), true)));
    tokio::spawn(gather::run(gathered, tx, metrics));
    rx
}

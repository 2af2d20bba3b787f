//! A Kubernetes API server as a source. It may be absent at the start, vanish and come
//! back: what was reported stays as it is until the server says otherwise.

mod connection;
mod credentials;
mod events;
mod follow;
mod gather;
mod node_taint;
mod observed;
mod optional;
mod servers;

use std::{fmt::Debug, path::PathBuf, sync::Arc};

use http::Uri;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{Api, Client, Resource, core::PartialObjectMeta, runtime::watcher};
use serde::de::DeserializeOwned;
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
use crate::tasks::Tasks;

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
pub fn start(client: &Client, node_name: &str, metrics: Arc<WatchMetrics>, tasks: &mut Tasks) -> Batches {
    let (signals, gathered) = mpsc::channel(SIGNALS_AHEAD);
    let (tx, rx) = mpsc::channel(BATCHES_AHEAD);
    let config = watcher::Config::default;
    let to = |config| Follow { config, signals: signals.clone(), metrics: metrics.clone() };
    follow_kind::<Service>(client, to(config().labels(SERVICES)), tasks);
    follow_kind::<EndpointSlice>(client, to(config().labels(SLICES)), tasks);
    let this_node = config().fields(&format!("metadata.name={node_name}"));
    follow_kind::<Node>(client, to(this_node), tasks);
    follow_kind::<ServiceCidr>(client, to(config()), tasks);
    let on_this_node = config().fields(&format!("spec.nodeName={node_name}"));
    follow_kind::<PartialObjectMeta<Pod>>(client, to(on_this_node), tasks);
    follow_kind::<PartialObjectMeta<Namespace>>(client, to(config()), tasks);
    tasks.spawn("what gathers objects", gather::run(gathered, tx, metrics));
    rx
}

/// Starts following a kind.
fn follow_kind<K>(client: &Client, how: Follow, tasks: &mut Tasks)
where
    K: Convert + Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let api = api::<K>(client, &how.metrics);
    tasks.spawn(format!("the follower of {} objects", K::KIND.name()), follow(api, how));
}

/// All objects of a kind, and what is heard of it noted.
fn api<K: Convert + Resource<DynamicType = ()>>(
    client: &Client,
    metrics: &Arc<WatchMetrics>,
) -> Api<Lenient<K>> {
    Api::all(observed(client, K::KIND, metrics))
}

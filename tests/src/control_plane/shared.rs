//! One API server for many nodes, one after the other: it runs in a namespace of its own,
//! and shows itself on the loopback of each node. Tests in processes of their own can share it, too.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use kube::{Client, Config, Error};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    ControlPlane, KUBECONFIG, Options, Ports, READERS_KUBECONFIG, block_on, client,
    content::{Content, create},
    marker::Versions,
    pki::READER,
    relay::Relay,
};
use crate::netns::Namespace;

/// Tells a test of a control plane that runs already, as [`Place`] in JSON.
const PLACE: &str = "SHUNT_CONTROL_PLANE";

/// A control plane, and the objects that were written to it.
#[derive(Debug)]
pub struct SharedControlPlane {
    // Processes go before the namespace they live in. None, where another process has started them.
    control_plane: Option<Mutex<ControlPlane>>,
    place: Place,
    namespace: Arc<Namespace>,
    content: Mutex<Content>,
}

/// Where another process finds a control plane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    namespace: String,
    directory: PathBuf,
    ports: Ports,
}

impl SharedControlPlane {
    /// Starts it.
    pub fn start() -> Result<Self> {
        Self::start_with(Options::default())
    }

    /// Starts it with these options.
    pub fn start_with(options: Options) -> Result<Self> {
        let namespace = Namespace::create("control")?;
        namespace.ip("link set lo up\n")?;
        let control_plane = ControlPlane::start(&namespace, options)?;
        control_plane.with_client(&namespace, async |client| {
            for object in readers_role() {
                make(&client, &object).await?;
            }
            Ok(())
        })?;
        let place = Place {
            namespace: namespace.name().to_owned(),
            directory: control_plane.directory.clone(),
            ports: control_plane.ports,
        };
        Self::at(place, namespace, Some(control_plane))
    }

    /// The one that runs already by the environment, for this process alone as long as it lives; else
    /// starts one.
    pub fn find_or_start() -> Result<Self> {
        let Some(place) = std::env::var_os(PLACE) else { return Self::start() };
        let place: Place = serde_json::from_slice(place.as_encoded_bytes()).context(PLACE)?;
        let namespace = Namespace::of_another(&place.namespace);
        Self::at(place, namespace, None)
    }

    fn at(place: Place, namespace: Namespace, control_plane: Option<ControlPlane>) -> Result<Self> {
        let content = Content::kept_in(&place.directory)?;
        Ok(Self {
            control_plane: control_plane.map(Mutex::new),
            place,
            namespace: Arc::new(namespace),
            content: Mutex::new(content),
        })
    }

    /// Where other processes find it.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Ends the API server at once, as a crash would.
    pub fn stop_api_server(&self) -> Result<()> {
        self.own()?.stop_api_server();
        Ok(())
    }

    /// Starts it again with the objects that it had, and waits until it is ready.
    pub fn start_api_server(&self) -> Result<()> {
        self.own()?.start_api_server(&self.namespace)
    }

    /// Ends it and writes what it holds to `directory`, from which another can be started.
    pub fn keep_data(&self, directory: &Path) -> Result<()> {
        self.own()?.keep_data(directory)
    }

    /// Runs `work` with a client, on a thread inside the namespace.
    pub fn with_client<T: Send>(&self, work: impl AsyncFnOnce(Client) -> Result<T> + Send) -> Result<T> {
        let kubeconfig = self.place.directory.join(KUBECONFIG);
        self.namespace.run(|| block_on(async { work(client(&kubeconfig).await?).await }))
    }

    /// The same with another client for etcd's own interface.
    pub fn with_clients<T: Send>(
        &self,
        work: impl AsyncFnOnce(Client, Client) -> Result<T> + Send,
    ) -> Result<T> {
        let etcd = format!("http://127.0.0.1:{}", self.place.ports.etcd).parse()?;
        self.with_client(async |client| work(client, Client::try_from(Config::new(etcd))?).await)
    }

    fn own(&self) -> Result<MutexGuard<'_, ControlPlane>> {
        let own = self.control_plane.as_ref().context("another process runs this control plane")?;
        Ok(own.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes `objects` all there is, apart from what the API server makes itself. An object
    /// that may not be changed as wanted is made anew.
    pub fn write(&self, objects: &[Value]) -> Result<()> {
        let content = &mut *self.content();
        self.with_client(async |client| content.write(&client, objects).await)
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes it reachable in `node` under the address in its kubeconfig. It has ServiceCIDRs
    /// from its start on, and cannot be without; so where a node is to see none, it has no
    /// right to, as under a role from the time before them.
    pub fn show_in(self: &Arc<Self>, node: &Namespace, service_cidrs: bool) -> Result<Shown> {
        let address = ([127, 0, 0, 1], self.place.ports.api_server).into();
        let relay = Relay::start(node, Arc::clone(&self.namespace), address)?;
        let kubeconfig = if service_cidrs { KUBECONFIG } else { READERS_KUBECONFIG };
        let kubeconfig = self.place.directory.join(kubeconfig);
        Ok(Shown { kubeconfig, service_cidrs, control_plane: Arc::clone(self), _relay: relay })
    }
}

/// Data that it was started with may have it already.
async fn make(client: &Client, object: &Value) -> Result<()> {
    match create(client, object).await {
        Err(error) if !is_conflict(&error) => Err(error),
        _ => Ok(()),
    }
}

fn is_conflict(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<Error>(), Some(Error::Api(status)) if status.code == 409)
}

/// Everything that an agent reads, but ServiceCIDRs.
fn readers_role() -> [Value; 2] {
    let role = "reader-without-service-ranges";
    let rule = json!({
        "apiGroups": ["", "discovery.k8s.io"],
        "resources": ["*"],
        "verbs": ["get", "list", "watch"],
    });
    let group = "rbac.authorization.k8s.io";
    let object =
        |kind: &str| json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": {"name": role}});
    let (mut rules, mut binding) = (object("ClusterRole"), object("ClusterRoleBinding"));
    rules["rules"] = json!([rule]);
    binding["roleRef"] = json!({"apiGroup": group, "kind": "ClusterRole", "name": role});
    binding["subjects"] = json!([{"apiGroup": group, "kind": "User", "name": READER}]);
    [rules, binding]
}

/// A control plane as a node sees it.
#[derive(Debug)]
pub struct Shown {
    kubeconfig: PathBuf,
    service_cidrs: bool,
    _relay: Relay,
    control_plane: Arc<SharedControlPlane>,
}

impl Shown {
    /// See [`SharedControlPlane::write`].
    pub fn write(&self, objects: &[Value]) -> Result<()> {
        self.control_plane.write(objects)
    }

    /// How far the agent of the node of that name has to come to have seen all that was written.
    pub fn written(&self, node: &str) -> Versions {
        let versions = self.control_plane.content().markers.for_node(node);
        if self.service_cidrs { versions } else { versions.without_service_cidrs() }
    }

    /// Runs `work` with a client, on a thread inside the node, whose way to the API server it takes.
    pub fn with_client<T: Send>(
        &self,
        node: &Namespace,
        work: impl AsyncFnOnce(Client) -> Result<T> + Send,
    ) -> Result<T> {
        node.run(|| block_on(async { work(client(&self.kubeconfig).await?).await }))
    }

    /// A kubeconfig for the node.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }
}

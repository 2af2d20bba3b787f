//! The objects that tests have put into an API server, and how they get there.

use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use kube::{
    Api, Client, Error,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::marker::Markers;

/// Where it is kept for other processes that write to the same API server, below the directory of that.
const FILE: &str = "content.json";

/// The ServiceCIDR that an API server makes itself.
pub(super) const OWN_RANGES: &str = "kubernetes";

/// What was written, and in which namespaces.
#[derive(Debug, Default)]
pub(super) struct Content {
    file: PathBuf,
    kept: Kept,
    pub(super) markers: Markers,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    objects: Vec<Value>,
    namespaces: BTreeSet<String>,
}

impl Content {
    /// What has been written until now to the API server of this directory.
    pub(super) fn kept_in(directory: &Path) -> Result<Self> {
        let file = directory.join(FILE);
        let kept = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| format!("read {}", file.display()))?,
            Err(error) if error.kind() == ErrorKind::NotFound => Kept::default(),
            Err(error) => return Err(error).with_context(|| format!("read {}", file.display())),
        };
        Ok(Self { file, kept, markers: Markers::default() })
    }

    fn keep(&self) -> Result<()> {
        let text = serde_json::to_vec(&self.kept)?;
        fs::write(&self.file, text).with_context(|| format!("write {}", self.file.display()))
    }

    /// Makes `wanted` all there is: first deletes, so that names and addresses are free again.
    pub(super) async fn write(&mut self, client: &Client, wanted: &[Value]) -> Result<()> {
        let before = self.kept.objects.clone();
        // Noted before it is written: a write that fails, or ends with its process, may be half done.
        self.kept.objects.extend(wanted.iter().filter(|object| !before.contains(object)).cloned());
        self.keep()?;
        let gone = before.iter().filter(|old| !wanted.iter().any(|new| identity(new) == identity(old)));
        let mut changed = false;
        for object in gone {
            remove(client, object).await.with_context(|| format!("delete {}", describe(object)))?;
            changed = true;
        }
        for object in wanted.iter().filter(|object| !before.contains(object)) {
            self.make_namespace(client, object).await?;
            put(client, object).await.with_context(|| format!("write {}", describe(object)))?;
            changed = true;
        }
        self.kept.objects = wanted.to_vec();
        self.keep()?;
        if changed || self.markers.are_missing() {
            self.markers.write(client, wanted).await?;
        }
        Ok(())
    }

    async fn make_namespace(&mut self, client: &Client, object: &Value) -> Result<()> {
        let Some(name) = object["metadata"]["namespace"].as_str() else { return Ok(()) };
        if name == "default" || !self.kept.namespaces.insert(name.to_owned()) {
            return Ok(());
        }
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        create(client, &namespace).await.with_context(|| format!("create namespace {name}"))?;
        self.keep()
    }
}

fn identity(object: &Value) -> [&Value; 3] {
    [&object["kind"], &object["metadata"]["namespace"], &object["metadata"]["name"]]
}

pub(super) fn describe(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let [kind, namespace, name] = identity(object).map(text);
    format!("{kind} {namespace}/{name}")
}

pub(super) fn api(client: &Client, object: &Value) -> Result<Api<DynamicObject>> {
    let api_version = object["apiVersion"].as_str().context("no apiVersion")?;
    let kind = object["kind"].as_str().context("no kind")?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        plural: format!("{}s", kind.to_lowercase()),
    };
    Ok(match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None if matches!(kind, "Service" | "EndpointSlice") => {
            Api::namespaced_with(client.clone(), "default", &resource)
        }
        None => Api::all_with(client.clone(), &resource),
    })
}

pub(super) fn name(object: &Value) -> Result<&str> {
    object["metadata"]["name"].as_str().context("no name")
}

/// The service ranges that the API server was started with. It makes them anew.
fn is_servers_own(object: &Value) -> bool {
    object["kind"] == "ServiceCIDR" && object["metadata"]["name"] == OWN_RANGES
}

fn is_dying(object: &DynamicObject) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

/// Creates or changes an object. What an API server does on its own when it is deleted is
/// brought about by deleting it.
async fn put(client: &Client, object: &Value) -> Result<()> {
    let api = api(client, object)?;
    let dies = object["metadata"].get("deletionTimestamp").is_some();
    let current = match api.get_opt(name(object)?).await? {
        Some(_) if is_servers_own(object) => return Ok(()),
        Some(current) if is_dying(&current) && !dies => {
            remove(client, object).await?;
            None
        }
        current => current,
    };
    let written = match current {
        None => create(client, object).await?,
        Some(current) => match replace(&api, object, &current).await {
            Ok(written) => written,
            Err(Error::Api(status)) if status.code == 422 => {
                remove(client, object).await?;
                create(client, object).await?
            }
            Err(error) => return Err(error.into()),
        },
    };
    put_status(&api, object, &written).await?;
    if dies && !is_dying(&written) {
        api.delete(name(object)?, &DeleteParams::default()).await?;
    }
    Ok(())
}

pub(super) async fn create(client: &Client, object: &Value) -> Result<DynamicObject> {
    let created = api(client, object)?.create(&PostParams::default(), &without_fate(object)?).await?;
    Ok(created)
}

async fn replace(
    api: &Api<DynamicObject>,
    object: &Value,
    current: &DynamicObject,
) -> kube::Result<DynamicObject> {
    let mut next = without_fate(object).map_err(Error::SerdeError)?;
    next.metadata.resource_version.clone_from(&current.metadata.resource_version);
    let name = current.metadata.name.as_deref().unwrap_or_default();
    api.replace(name, &PostParams::default(), &next).await
}

/// The part that is written with the object itself.
fn without_fate(object: &Value) -> serde_json::Result<DynamicObject> {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("deletionTimestamp");
    }
    serde_json::from_value(object)
}

/// The addresses of a node and of load balancers are status, which is written apart.
async fn put_status(api: &Api<DynamicObject>, object: &Value, written: &DynamicObject) -> Result<()> {
    let wanted = match object.get("status") {
        Some(status) => status.clone(),
        None if written.data["status"]["loadBalancer"]["ingress"].is_array() => {
            json!({"loadBalancer": {"ingress": null}})
        }
        None => return Ok(()),
    };
    let patch = Patch::Merge(json!({"status": wanted}));
    api.patch_status(name(object)?, &PatchParams::default(), &patch).await.context("status")?;
    Ok(())
}

/// Deletes an object and whatever keeps it from being gone.
async fn remove(client: &Client, object: &Value) -> Result<()> {
    if is_servers_own(object) {
        return Ok(());
    }
    let (api, name) = (api(client, object)?, name(object)?);
    let deleted = api.delete(name, &DeleteParams::default()).await;
    if !matches!(&deleted, Err(Error::Api(status)) if status.code == 404) {
        deleted?;
    }
    if api.get_opt(name).await?.is_some() {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        api.patch(name, &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

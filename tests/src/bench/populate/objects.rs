//! Single requests to an API server, with objects as plain JSON: nothing is decoded that nobody reads.

use anyhow::{Context as _, Result};
use http::{Method, Request};
use kube::{Client, Error};
use serde_json::{Value, json};

/// Where an object is, or with `None` for a name those of its kind.
fn path(object: &Value, name: Option<&str>) -> Result<String> {
    let version = object["apiVersion"].as_str().context("an object without apiVersion")?;
    let kind = object["kind"].as_str().context("an object without kind")?;
    let mut path = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    if let Some(namespace) = object["metadata"]["namespace"].as_str() {
        path.push_str(&format!("/namespaces/{namespace}"));
    }
    path.push_str(&format!("/{}s", kind.to_lowercase()));
    if let Some(name) = name {
        path.push_str(&format!("/{name}"));
    }
    Ok(path)
}

fn path_of(object: &Value) -> Result<String> {
    let name = object["metadata"]["name"].as_str().context("an object without name")?;
    path(object, Some(name))
}

async fn send(client: &Client, method: Method, path: &str, kind: &str, body: &Value) -> Result<()> {
    let request = Request::builder().method(method.clone()).uri(path).header("content-type", kind);
    let request = request.body(serde_json::to_vec(body)?)?;
    client.request_text(request).await.map(drop).with_context(|| format!("{method} {path}"))
}

fn has_code(error: &anyhow::Error, code: u16) -> bool {
    matches!(error.downcast_ref::<Error>(), Some(Error::Api(status)) if status.code == code)
}

/// Creates an object, unless there is one of this name.
pub(crate) async fn create(client: &Client, object: &Value) -> Result<()> {
    match send(client, Method::POST, &path(object, None)?, "application/json", object).await {
        Err(error) if !has_code(&error, 409) => Err(error),
        _ => Ok(()),
    }
}

/// Creates a namespace, unless it is there.
pub(crate) async fn create_namespace(client: &Client, name: &str) -> Result<()> {
    create(client, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await
}

/// Writes the status of an object that exists.
pub(crate) async fn patch_status(client: &Client, object: &Value) -> Result<()> {
    let path = format!("{}/status", path_of(object)?);
    let patch = json!({"status": object["status"]});
    send(client, Method::PATCH, &path, "application/merge-patch+json", &patch).await
}

/// Makes the endpoints of a slice those of this one.
pub(crate) async fn patch_endpoints(client: &Client, slice: &Value) -> Result<()> {
    let patch = json!({"endpoints": slice["endpoints"]});
    send(client, Method::PATCH, &path_of(slice)?, "application/merge-patch+json", &patch).await
}

/// Deletes an object, unless it is gone.
pub(crate) async fn delete(client: &Client, object: &Value) -> Result<()> {
    match send(client, Method::DELETE, &path_of(object)?, "application/json", &json!({})).await {
        Err(error) if !has_code(&error, 404) => Err(error),
        _ => Ok(()),
    }
}

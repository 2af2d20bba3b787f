//! What an administrator does with manifests: apply them, and run somebody as their service
//! account.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::ServiceAccount};
use kube::{
    Api, Error,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::Value;

use super::{ControlPlane, content, kubeconfig};
use crate::{late, netns::Namespace};

/// A kind or a namespace that was just made is there only after a moment.
const THERE: Duration = Duration::from_secs(30);

impl ControlPlane {
    /// Applies the objects in their order, with fields that nobody knows taken for errors.
    /// A dry run goes as far as everything but the storage.
    pub fn apply(&self, namespace: &Namespace, objects: &[Value], dry_run: bool) -> Result<()> {
        objects.iter().try_for_each(|object| {
            let apply = || match self.apply_one(namespace, object, dry_run) {
                Err(error) if is_absent(&error) => bail!(late!("{error:#}, and not in {THERE:?}")),
                result => result,
            };
            late::poll(THERE, apply).with_context(|| format!("apply {}", content::describe(object)))
        })
    }

    fn apply_one(&self, namespace: &Namespace, object: &Value, dry_run: bool) -> Result<()> {
        self.with_client(namespace, async |client| {
            let api = content::api(&client, object)?;
            let mut params = PatchParams::apply("tests").validation_strict();
            params.dry_run = dry_run;
            api.patch(content::name(object)?, &params, &Patch::Apply(object)).await?;
            Ok(())
        })
    }

    /// What a strategic merge patch, as of `kubectl patch`, would make of an object.
    pub fn patch(&self, namespace: &Namespace, object: &Value, patch: &Value) -> Result<Value> {
        self.with_client(namespace, async |client| {
            let api = content::api(&client, object)?;
            let params = PatchParams { dry_run: true, ..PatchParams::default() };
            let made = api.patch(content::name(object)?, &params, &Patch::Strategic(patch)).await?;
            Ok(serde_json::to_value(made)?)
        })
    }

    /// A kubeconfig of a service account, which must exist.
    pub fn service_account(&self, namespace: &Namespace, of: &str, name: &str) -> Result<PathBuf> {
        let token = self.with_client(namespace, async |client| {
            let accounts = Api::<ServiceAccount>::namespaced(client, of);
            let request = TokenRequest::default();
            Ok(accounts.create_token_request(name, &PostParams::default(), &request).await?)
        })?;
        let token = token.status.and_then(|status| status.token);
        let token = token.context("the request for a token was not answered")?;
        let path = self.directory.join(format!("kubeconfig-{of}-{name}"));
        fs::write(&path, kubeconfig(&self.directory, self.ports.api_server, &token))?;
        Ok(path)
    }
}

fn is_absent(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<Error>(), Some(Error::Api(status)) if status.code == 404)
}

//! Where the content of API servers is kept between runs.

use crate::{
    cleanup::directory_in,
    control_plane::{SharedControlPlane, assets},
};
use anyhow::{Context as _, Result};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// To be raised when fillers become others.
const FORMAT: u32 = 2;

/// Where the content with so many fillers is, or is to be. Another version of Kubernetes has a
/// place of its own.
pub(super) fn place(services: u32) -> Result<PathBuf> {
    let assets = assets()?;
    let version = assets.file_name().context("the directory of the control plane has no name")?;
    let version = version.to_string_lossy();
    Ok(folder()?.join(format!("populated-{version}-{services}-{FORMAT}")))
}

/// In the user's cache; made if it is not there.
pub(in crate::bench) fn folder() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let folder = cache.context("neither XDG_CACHE_HOME nor HOME is set")?.join("shunt");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

/// Ends the API server and keeps what it holds: beside its place first, so that what is at the
/// place is whole.
pub(super) fn keep(control_plane: &SharedControlPlane, place: &Path) -> Result<()> {
    let (draft, _removed) = directory_in(&folder()?, "draft")?;
    let draft = draft.join("data");
    control_plane.keep_data(&draft)?;
    fs::rename(&draft, place).with_context(|| format!("rename {}", draft.display()))
}

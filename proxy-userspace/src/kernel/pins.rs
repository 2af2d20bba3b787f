//! Where kernel objects are pinned, so that they outlive the agent.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use proxy_common::maps::LAYOUT_VERSION;

use super::error::KernelError;

/// Directory of all pins unless the operator names another.
pub const DEFAULT_BPFFS: &str = "/sys/fs/bpf/shunt";

/// The directories below the agent's part of the BPF file system.
#[derive(Clone, Debug)]
pub struct Pins {
    root: PathBuf,
}

impl Pins {
    /// Pins below `root`; touches nothing.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Makes the directories.
    ///
    /// # Errors
    /// When `root` is not on a BPF file system, or a directory cannot be made.
    pub fn create(&self) -> Result<(), KernelError> {
        let existing = self.root.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
        let on_bpffs = statfs(existing).is_ok_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC);
        if !on_bpffs {
            return Err(KernelError::NotBpffs { path: existing.to_owned() });
        }
        for dir in [self.maps_dir(), self.links_dir()] {
            fs::create_dir_all(&dir).map_err(|source| KernelError::File {
                what: "cannot create",
                path: dir.clone(),
                source,
            })?;
        }
        Ok(())
    }

    /// The directory the operator gave.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Pin of the map called `name`.
    pub fn map(&self, name: &str) -> PathBuf {
        self.maps_dir().join(name)
    }

    /// Pin of the link called `name`.
    pub fn link(&self, name: &str) -> PathBuf {
        self.links_dir().join(name)
    }

    /// The names of all pinned links.
    ///
    /// # Errors
    /// When the directory exists and cannot be read.
    pub fn links(&self) -> io::Result<Vec<String>> {
        match fs::read_dir(self.links_dir()) {
            Ok(entries) => entries.map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned())).collect(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    fn maps_dir(&self) -> PathBuf {
        self.root.join(format!("v{LAYOUT_VERSION}")).join("maps")
    }

    /// Links are shared by all layout versions: whoever runs replaces their program.
    fn links_dir(&self) -> PathBuf {
        self.root.join("links")
    }
}

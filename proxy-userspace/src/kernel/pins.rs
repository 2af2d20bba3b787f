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

/// Directory of pinned links.
const LINKS: &str = "links";

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

    /// Removes all pins, of every layout version, and nothing else. False if there were none.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn remove(&self) -> Result<bool, KernelError> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(source) => {
                return Err(KernelError::File { what: "cannot read", path: self.root.clone(), source });
            }
        };
        let ours = |name: &str| {
            name == LINKS || name.strip_prefix('v').is_some_and(|version| version.parse::<u32>().is_ok())
        };
        let mut removed = false;
        for entry in entries.flatten().filter(|entry| ours(&entry.file_name().to_string_lossy())) {
            let path = entry.path();
            fs::remove_dir_all(&path).map_err(|source| KernelError::File {
                what: "cannot remove",
                path,
                source,
            })?;
            removed = true;
        }
        // It stays where it is a mount point or holds the pins of others.
        let _ = fs::remove_dir(&self.root);
        Ok(removed)
    }

    fn maps_dir(&self) -> PathBuf {
        self.root.join(format!("v{LAYOUT_VERSION}")).join("maps")
    }

    /// Links are shared by all layout versions: whoever runs replaces their program.
    fn links_dir(&self) -> PathBuf {
        self.root.join(LINKS)
    }
}

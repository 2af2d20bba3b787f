//! Folders for tests of the runner.

use std::env::temp_dir;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that goes with this value.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn create() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("shunt-xtask-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that has failed is not to be covered by this.
        let _ = fs::remove_dir_all(&self.0);
    }
}

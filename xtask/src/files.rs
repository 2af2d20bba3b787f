//! Files of folders as a whole: which there are, and writing what differs.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// In the folders that cargo makes for what it builds, and in others whose content can be made again.
const CACHE_TAG: &str = "CACHEDIR.TAG";

/// All files below `root` by their path from there, but for git's, those in `left_out` and caches. It does not ask git,
/// as sources also come without it. Links are left out: no crate needs one.
pub(crate) fn below(root: &Path, left_out: Option<&Path>) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| cannot("read", &folder))? {
            let entry = entry.with_context(|| cannot("read", &folder))?;
            let path = entry.path();
            let kind = entry.file_type().with_context(|| cannot("read", &path))?;
            if entry.file_name() == OsStr::new(".git") || Some(&*path) == left_out {
                continue;
            }
            if kind.is_dir() && !path.join(CACHE_TAG).exists() {
                folders.push(path);
            } else if kind.is_file() {
                found.push(path.strip_prefix(root)?.to_owned());
            }
        }
    }
    Ok(found)
}

/// Writes a file, and tells whether it differs from what was there. An equal one is left alone with its time of change,
/// so that nothing that is made of it is made anew.
pub(crate) fn write_if_changed(path: &Path, content: &[u8]) -> anyhow::Result<bool> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(false);
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| cannot("make", folder))?;
    }
    fs::write(path, content).with_context(|| cannot("write", path))?;
    Ok(true)
}

/// Removes a file below `root`, and folders that are empty without it.
pub(crate) fn remove(root: &Path, file: &Path) -> anyhow::Result<()> {
    let path = root.join(file);
    fs::remove_file(&path).with_context(|| cannot("remove", &path))?;
    for folder in path.ancestors().skip(1).take_while(|folder| *folder != root) {
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => break,
            removed => removed.with_context(|| cannot("remove", folder))?,
        }
    }
    Ok(())
}

fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_caches_and_what_is_left_out_are_not_found() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for file in ["a", "b/c", ".git/head", "out/x", "crate/target/CACHEDIR.TAG", "crate/target/y"] {
            assert!(write_if_changed(&root.join(file), b"").unwrap());
        }
        let mut found = below(root, Some(&root.join("out"))).unwrap();
        found.sort();
        assert_eq!(found, [Path::new("a"), Path::new("b/c")]);
    }

    #[test]
    fn a_folder_goes_with_its_last_file() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write_if_changed(&root.join("a/b/c"), b"").unwrap();
        write_if_changed(&root.join("a/d"), b"").unwrap();
        remove(root, Path::new("a/b/c")).unwrap();
        assert!(root.join("a/d").exists() && !root.join("a/b").exists());
        remove(root, Path::new("a/d")).unwrap();
        assert!(root.exists() && !root.join("a").exists());
    }
}

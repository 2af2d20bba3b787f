//! Finds the cgroups of pods by the names kubelet gives them: `pod<uid>` in a directory's
//! name, with underscores in the UID where systemd made the directory.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirEntry},
    io,
    os::unix::fs::DirEntryExt,
    path::Path,
    sync::Arc,
};

use proxy_common::maps::socket_lb_exempt::DEPTH;

/// The ids of the cgroups of those of `pods` that have one below `root`.
pub(super) fn find(root: &Path, pods: &BTreeSet<Arc<str>>) -> io::Result<BTreeMap<Arc<str>, u64>> {
    let mut found = BTreeMap::new();
    if !pods.is_empty() {
        walk(root, DEPTH, pods, &mut found)?;
    }
    Ok(found)
}

fn walk(
    directory: &Path,
    depth: i32,
    pods: &BTreeSet<Arc<str>>,
    found: &mut BTreeMap<Arc<str>, u64>,
) -> io::Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        match uid_of(&entry) {
            // What is below belongs to the same pod.
            Some(uid) => {
                if let Some(uid) = pods.get(uid.as_str()) {
                    found.insert(uid.clone(), entry.ino());
                }
            }
            // A directory that is gone meanwhile had nothing to be found.
            None if depth > 1 => drop(walk(&entry.path(), depth - 1, pods, found)),
            None => {}
        }
    }
    Ok(())
}

/// The UID of the pod that a directory belongs to.
fn uid_of(entry: &DirEntry) -> Option<String> {
    let name = entry.file_name();
    uid_in(name.to_str()?)
}

fn uid_in(name: &str) -> Option<String> {
    match name.strip_suffix(".slice") {
        // kubepods-burstable-pod<uid>.slice, kubepods-pod<uid>.slice
        Some(unit) => unit.rsplit_once("-pod").map(|(_, uid)| uid.replace('_', "-")),
        None => name.strip_prefix("pod").map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const UID: &str = "0b2c6e1e-51d4-4f0c-9c46-3c1c3f1a9f10";

    #[test]
    fn both_spellings_are_read() {
        let escaped = UID.replace('-', "_");
        for name in [
            format!("pod{UID}"),
            format!("kubepods-pod{escaped}.slice"),
            format!("kubepods-burstable-pod{escaped}.slice"),
            format!("kubelet-kubepods-besteffort-pod{escaped}.slice"),
        ] {
            assert_eq!(uid_in(&name).as_deref(), Some(UID), "{name}");
        }
        for name in ["kubepods.slice", "kubepods-burstable.slice", "system.slice", "kubepods", "init.scope"] {
            assert_eq!(uid_in(name), None, "{name}");
        }
    }

    #[test]
    fn pods_are_found_at_any_depth() {
        let root = tempfile::tempdir().expect("a directory");
        let pod = root.path().join(format!("kubepods.slice/kubepods-burstable.slice/x-pod{UID}.slice"));
        fs::create_dir_all(pod.join("container.scope")).expect("directories");
        let pods = BTreeSet::from([UID.into(), "another".into()]);
        let found = find(root.path(), &pods).expect("readable");
        assert_eq!(found, BTreeMap::from([(UID.into(), fs::metadata(pod).expect("it is there").ino())]));
    }
}

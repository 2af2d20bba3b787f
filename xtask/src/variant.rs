//! Variants of the sources: copies that differ by listed edits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::files;
use crate::workspace::Workspace;

/// A change of a file's text.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Edit {
    /// From the top of the source tree.
    file: PathBuf,
    /// Stands there once.
    from: String,
    to: String,
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}` → `{}`", self.file.display(), self.from, self.to)
    }
}

impl Edit {
    fn apply(&self, text: &str) -> anyhow::Result<String> {
        let times = text.matches(&self.from).count();
        anyhow::ensure!(
            times == 1,
            "{self}: what it replaces is there {times} times instead of once; adapt its `from` to the file"
        );
        Ok(text.replace(&self.from, &self.to))
    }
}

/// Reads a list, whose path is from the top of the source tree.
pub(crate) fn read_list<L: DeserializeOwned>(workspace: &Workspace, list: &str) -> anyhow::Result<L> {
    let text =
        fs::read_to_string(workspace.root.join(list)).with_context(|| format!("cannot read {list}"))?;
    toml::from_str(&text).with_context(|| format!("cannot understand {list}"))
}

/// The texts of the files that the edits change, with all of them made in their order.
pub(crate) fn edited(workspace: &Workspace, edits: &[Edit]) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut texts = BTreeMap::new();
    for edit in edits {
        let text = match texts.remove(&edit.file) {
            Some(text) => text,
            None => fs::read_to_string(workspace.root.join(&edit.file))
                .with_context(|| format!("{edit}: cannot read the file"))?,
        };
        texts.insert(edit.file.clone(), edit.apply(&text)?);
    }
    Ok(texts)
}

/// Makes `copy` a copy of the source tree, as it is now, with these edits. What is there already is not written again:
/// cargo goes by times of change, and builds what is younger than what it has built.
pub(crate) fn write(workspace: &Workspace, edits: &[Edit], copy: &Path) -> anyhow::Result<()> {
    let edited = edited(workspace, edits)?;
    let sources: BTreeSet<_> = files::below(&workspace.root, Some(&workspace.target))?.into_iter().collect();
    fs::create_dir_all(copy).with_context(|| format!("cannot make {}", copy.display()))?;
    for file in files::below(copy, None)?.iter().filter(|file| !sources.contains(*file)) {
        files::remove(copy, file)?;
    }
    for file in &sources {
        let original = workspace.root.join(file);
        let content = match edited.get(file) {
            Some(text) => text.clone().into_bytes(),
            None => fs::read(&original).with_context(|| format!("cannot read {}", original.display()))?,
        };
        files::write_if_changed(&copy.join(file), &content)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(file: &str, from: &str, to: &str) -> Edit {
        Edit { file: file.into(), from: from.into(), to: to.into() }
    }

    fn workspace(root: &Path) -> Workspace {
        let target = root.join("target");
        for (file, text) in [("a.rs", "one two two"), ("b/c.rs", "three"), ("target/old", "")] {
            files::write_if_changed(&root.join(file), text.as_bytes()).unwrap();
        }
        Workspace { root: root.to_owned(), target, test_targets: Vec::new() }
    }

    #[test]
    fn what_an_edit_replaces_is_there_once() {
        let root = tempfile::tempdir().unwrap();
        let workspace = workspace(root.path());
        let error = |edit| format!("{:#}", edited(&workspace, &[edit]).unwrap_err());
        let message = error(edit("a.rs", "two", "2"));
        assert!(message.starts_with("a.rs: `two` → `2`: ") && message.contains("there 2 times"), "{message}");
        let message = error(edit("a.rs", "four", "4"));
        assert!(
            message.starts_with("a.rs: `four` → `4`: ") && message.contains("there 0 times"),
            "{message}"
        );
        let message = error(edit("d.rs", "one", "1"));
        assert!(message.starts_with("d.rs: `one` → `1`: cannot read"), "{message}");
    }

    #[test]
    fn an_edit_sees_what_those_before_it_have_made() {
        let root = tempfile::tempdir().unwrap();
        let workspace = workspace(root.path());
        let edits = [edit("a.rs", "one two", "four"), edit("a.rs", " two", ""), edit("b/c.rs", "ee", "")];
        let texts = edited(&workspace, &edits).unwrap();
        assert_eq!(texts.values().collect::<Vec<_>>(), ["four", "thr"]);
    }

    #[test]
    fn a_copy_follows_the_sources() {
        let root = tempfile::tempdir().unwrap();
        let workspace = workspace(root.path());
        let copy = workspace.target.join("copy");
        let text = |file: &str| fs::read_to_string(copy.join(file)).unwrap();
        let changed = |file: &str| fs::metadata(copy.join(file)).unwrap().modified().unwrap();
        write(&workspace, &[edit("a.rs", "one", "1")], &copy).unwrap();
        assert_eq!((text("a.rs").as_str(), text("b/c.rs").as_str()), ("1 two two", "three"));
        assert!(!copy.join("target").exists());

        let before = changed("b/c.rs");
        fs::write(root.path().join("d.rs"), "new").unwrap();
        fs::remove_file(root.path().join("a.rs")).unwrap();
        write(&workspace, &[], &copy).unwrap();
        assert_eq!((text("d.rs").as_str(), changed("b/c.rs")), ("new", before));
        assert!(!copy.join("a.rs").exists());
    }
}

//! What a change touches: the files that differ from what was there before it.

use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use crate::passes;
use crate::proc::output;
use crate::workspace::Workspace;

/// Names the commit before the change, for where this cannot be found out.
pub(crate) const BASE_VARIABLE: &str = "SHUNT_CHANGE_BASE";

/// The files that differ from a commit; everything, if there is none to compare with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The commit before it.
    base: Option<String>,
    files: Option<Vec<String>>,
}

impl Change {
    /// Of this tree, with what is not committed.
    pub(crate) fn find(workspace: &Workspace) -> Self {
        let base = base(workspace);
        let files = base.as_deref().and_then(|base| files(&workspace.root, base));
        Self { base, files }
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[&str]) -> Self {
        Self { base: None, files: Some(files.iter().map(ToString::to_string).collect()) }
    }

    /// Those that differ; none, if there is nothing to compare with.
    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().flatten().map(String::as_str)
    }

    /// The lines of a file, from 1, that are new or differ.
    pub(crate) fn lines(&self, root: &Path, file: &str) -> anyhow::Result<Vec<RangeInclusive<usize>>> {
        let base = self.base.as_deref().context("no commit to compare with")?;
        let is_known = git(root, &["ls-files", "--error-unmatch", "--", file]).is_some();
        if !is_known {
            return Ok(vec![1..=usize::MAX]);
        }
        let diff =
            git(root, &["diff", "--unified=0", "--no-renames", base, "--", file]).context("git diff")?;
        Ok(diff.lines().filter_map(hunk).collect())
    }

    /// The first of these files and folders with something that differs.
    pub(crate) fn touches<'a>(&self, paths: &'a [impl AsRef<str>]) -> Option<&'a str> {
        let differs = |path: &str| match &self.files {
            Some(files) => files.iter().any(|file| is_below(file, path)),
            None => true,
        };
        paths.iter().map(AsRef::as_ref).find(|path| differs(path))
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.base, &self.files) {
            (Some(base), Some(files)) => write!(f, "{} files changed since {base}", files.len()),
            _ => write!(f, "no commit to compare with: taking everything as changed"),
        }
    }
}

/// The new lines of a hunk: `@@ -10,2 +12,3 @@`. Where lines are gone, the one before them.
fn hunk(header: &str) -> Option<RangeInclusive<usize>> {
    let new = header.strip_prefix("@@ ")?.split(' ').find_map(|word| word.strip_prefix('+'))?;
    let (first, count) = new.split_once(',').unwrap_or((new, "1"));
    let (first, count): (usize, usize) = (first.parse().ok()?, count.parse().ok()?);
    Some(first..=first + count.saturating_sub(1))
}

fn is_below(file: &str, path: &str) -> bool {
    Path::new(file).starts_with(path)
}

/// The commit before the change: where it left the branch that it is for, else the last other that
/// passed here, else the one before the last.
fn base(workspace: &Workspace) -> Option<String> {
    let root = &workspace.root;
    if let Some(base) = std::env::var_os(BASE_VARIABLE).filter(|base| !base.is_empty()) {
        return git(root, &["rev-parse", "--short", &base.to_string_lossy()]);
    }
    let head = git(root, &["rev-parse", "HEAD"])?;
    let branched = git(root, &["merge-base", "HEAD", "origin/HEAD"]).filter(|base| *base != head);
    let is_before = |commit: &String| {
        *commit != head && git(root, &["merge-base", "--is-ancestor", commit, "HEAD"]).is_some()
    };
    let passed = || passes::list(workspace).into_iter().rev().map(|pass| pass.commit).find(is_before);
    let base = branched.or_else(passed).or_else(|| git(root, &["rev-parse", "HEAD^"]))?;
    git(root, &["rev-parse", "--short", &base])
}

fn files(root: &Path, base: &str) -> Option<Vec<String>> {
    // With the names before and after: what moves is touched in both places.
    let changed = git(root, &["diff", "--name-only", "--no-renames", base])?;
    let new = git(root, &["ls-files", "--others", "--exclude-standard"])?;
    Some(changed.lines().chain(new.lines()).map(str::to_owned).collect())
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    output(Command::new("git").arg("-C").arg(root).args(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_touched_by_what_is_in_it() {
        let change = Change::of(&["proxy-ebpf/src/main.rs", "README.md"]);
        assert_eq!(change.touches(&["proxy-ebpf/src"]), Some("proxy-ebpf/src"));
        assert_eq!(change.touches(&["docs", "README.md"]), Some("README.md"));
        assert_eq!(change.touches(&["proxy-ebpf/s", "README"]), None);
    }

    #[test]
    fn a_hunk_has_lines() {
        assert_eq!(hunk("@@ -10,2 +12,3 @@ fn x() {"), Some(12..=14));
        assert_eq!(hunk("@@ -1 +1 @@"), Some(1..=1));
        assert_eq!(hunk("@@ -5,2 +4,0 @@"), Some(4..=4));
        assert_eq!(hunk("+++ b/tests/node.rs"), None);
    }

    #[test]
    fn without_a_commit_to_compare_with_everything_is_touched() {
        let change = Change { base: None, files: None };
        assert_eq!(change.touches(&["docs"]), Some("docs"));
    }
}

//! Links between documents, and the book's table of contents.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

use anyhow::{Result, ensure};

use tests::documents::{Page, all, root};

/// The table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// Why a link leads nowhere, if so. What is on other machines is not looked at.
fn broken(page: &Page, pages: &[Page], link: &str) -> Option<&'static str> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.path.clone(),
        path => normal(&page.path.parent().unwrap_or(Path::new("")).join(path)),
    };
    if !root().join(&target).exists() {
        return Some("there is no such file");
    }
    let known = pages.iter().find(|page| page.path == target);
    let found = anchor.is_empty() || known.is_none_or(|page| page.anchors.contains(anchor));
    (!found).then_some("there is no such heading")
}

#[test]
fn links_lead_somewhere() -> Result<()> {
    let pages = all()?;
    let mut found = Vec::new();
    for page in &pages {
        for link in &page.links {
            if let Some(why) = broken(page, &pages, link) {
                found.push(format!("{}: ({link}): {why}", page.path.display()));
            }
        }
    }
    ensure!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}

#[test]
fn the_book_has_every_page_once() -> Result<()> {
    let summary = Page::read(Path::new(SUMMARY))?;
    let folder = Path::new("docs");
    let listed: BTreeSet<PathBuf> = summary.links.iter().map(|link| normal(&folder.join(link))).collect();
    ensure!(listed.len() == summary.links.len(), "a page is listed twice");
    let paths = all()?.into_iter().map(|page| page.path);
    let pages: BTreeSet<PathBuf> =
        paths.filter(|path| path.starts_with(folder) && path != Path::new(SUMMARY)).collect();
    ensure!(listed == pages, "{SUMMARY} lists {listed:?}, and docs has {pages:?}");
    Ok(())
}

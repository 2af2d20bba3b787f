//! `shunt man`: the manual, a page for each command, made of the same words as `--help`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;

use super::Cli;

pub(super) const EXAMPLES: &str = "Examples:
  shunt man | man -l -
  shunt man --dir /usr/local/share/man/man8";

/// `shunt man`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write all pages to this directory, a file each; without it, the first page is printed.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Commands of the administrator (man-pages(7)).
const SECTION: &str = "8";

/// Prints or writes the manual.
pub fn run(args: &ManArgs) -> Result<ExitCode> {
    let pages = pages()?;
    match &args.dir {
        Some(dir) => write(dir, &pages),
        None => super::print(pages.first().map_or("", |page| page.text.trim_end())),
    }
}

struct Page {
    name: String,
    text: String,
}

fn write(dir: &Path, pages: &[Page]) -> Result<ExitCode> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for page in pages {
        let path = dir.join(format!("{}.{SECTION}", page.name));
        fs::write(&path, &page.text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    super::print(&format!("wrote {} pages to {}", pages.len(), dir.display()))
}

/// The page of `shunt`, then one for each command below it.
fn pages() -> Result<Vec<Page>> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    add(&root, "shunt".into(), &mut pages)?;
    Ok(pages)
}

fn add(command: &Command, name: String, pages: &mut Vec<Page>) -> Result<()> {
    let mut text = Vec::new();
    let titled = command.clone().name(name.clone()).display_name(name.clone());
    Man::new(titled).section(SECTION).render(&mut text).context("cannot write a page")?;
    pages.push(Page { name: name.clone(), text: String::from_utf8(text).context("a page")? });
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        add(child, format!("{name}-{}", child.get_name()), pages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        run(&ManArgs { dir: Some(dir.path().to_owned()) }).unwrap();
        for name in ["shunt", "shunt-agent", "shunt-service-list", "shunt-verify"] {
            let text = fs::read_to_string(dir.path().join(format!("{name}.8"))).unwrap();
            assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{name}: {text}");
        }
        let list = fs::read_to_string(dir.path().join("shunt-conn-list.8")).unwrap();
        assert!(list.contains("Examples") && list.contains("sort"), "{list}");
    }
}

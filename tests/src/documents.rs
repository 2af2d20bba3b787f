//! The documents of this repository: their links, their headings, and the commands in them.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The root of the repository.
pub fn root() -> PathBuf {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    above.map(Path::to_owned).unwrap_or_default()
}

/// A document.
#[derive(Debug)]
pub struct Page {
    /// Below the root.
    pub path: PathBuf,
    /// Where its links lead, as they are written.
    pub links: Vec<String>,
    /// What a link may name after `#`.
    pub anchors: BTreeSet<String>,
    /// Blocks of code with the word behind the fence.
    pub code: Vec<(String, String)>,
    /// Code within sentences and tables.
    pub spans: Vec<String>,
}

impl Page {
    /// Reads a page below the root.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(root().join(path)).with_context(|| path.display().to_string())?;
        Ok(Self::parse(path, &text))
    }

    fn parse(path: &Path, text: &str) -> Self {
        let mut page = Self {
            path: path.to_owned(),
            links: Vec::new(),
            anchors: BTreeSet::new(),
            code: Vec::new(),
            spans: Vec::new(),
        };
        let (mut heading, mut fence): (Option<String>, Option<(String, String)>) = (None, None);
        let mut seen = HashMap::new();
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors.extend(heading.take().map(|title| anchor(&title, &mut seen)));
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(word))) => {
                    fence = Some((word.into_string(), String::new()));
                }
                Event::End(TagEnd::CodeBlock) => page.code.extend(fence.take()),
                Event::Code(span) => {
                    if let Some(title) = &mut heading {
                        title.push_str(&span);
                    }
                    page.spans.push(span.into_string());
                }
                Event::Text(text) => {
                    if let Some((_, code)) = &mut fence {
                        code.push_str(&text);
                    } else if let Some(title) = &mut heading {
                        title.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page
    }
}

/// What GitHub and mdBook make of a heading; the second of the same name gets a number.
fn anchor(title: &str, seen: &mut HashMap<String, u32>) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    let slug: String = kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
    let count = seen.entry(slug.clone()).or_default();
    *count += 1;
    if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
}

/// Every document of the repository.
pub fn all() -> Result<Vec<Page>> {
    let mut paths = Vec::new();
    for folder in ["", "docs", "deploy", "tests", "fuzz"] {
        collect(&root().join(folder), !folder.is_empty(), &mut paths)?;
    }
    paths.sort();
    paths.iter().map(|path| Page::read(path.strip_prefix(root())?)).collect()
}

fn collect(folder: &Path, deep: bool, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        // What is built or fetched lies in such folders.
        let is_ours = entry.file_name() != "target" && !entry.file_type()?.is_symlink();
        if entry.file_type()?.is_dir() && deep && is_ours {
            collect(&entry.path(), deep, found)?;
        } else if entry.path().extension().is_some_and(|extension| extension == "md") {
            found.push(entry.path());
        }
    }
    Ok(())
}

impl Page {
    /// The calls of `shunt` in blocks of `sh`, each with its line.
    pub fn calls(&self) -> Result<Vec<(String, Vec<String>)>> {
        let mut found = Vec::new();
        for (_, script) in self.code.iter().filter(|(word, _)| word == "sh") {
            for line in lines(script) {
                let calls = calls(&line).with_context(|| self.path.display().to_string())?;
                found.extend(calls.into_iter().map(|call| (line.clone(), call)));
            }
        }
        Ok(found)
    }
}

/// Other names that a line may call the program by.
const PROGRAMS: [&str; 4] = ["shunt", "target/release/shunt", "target/debug/shunt", "/usr/local/bin/shunt"];

/// Words that end a command.
const ENDS: [&str; 8] = ["|", ">", ">>", "&&", "||", ";", "&", "2>&1"];

/// The lines of a script, with those that a backslash ends joined to the next.
fn lines(script: &str) -> Vec<String> {
    script.replace("\\\n", " ").lines().map(str::to_owned).collect()
}

/// The arguments of every call of `shunt` in a line of a shell, its own name first.
fn calls(line: &str) -> Result<Vec<Vec<String>>> {
    // A comment begins at a word; within quotes there are none in our documents.
    let code = match line.trim_start().starts_with('#') {
        true => "",
        false => line.split(" #").next().unwrap_or_default(),
    };
    if !PROGRAMS.iter().any(|program| code.contains(program)) {
        return Ok(Vec::new());
    }
    let words = shell_words::split(code).with_context(|| code.to_owned())?;
    let mut calls: Vec<Vec<String>> = Vec::new();
    let (mut open, mut at_start) = (false, true);
    for word in words {
        let ends = ENDS.contains(&word.as_str());
        // A program is what a command begins with, also behind `sudo` and in a container.
        if PROGRAMS.contains(&word.as_str()) && at_start {
            calls.push(vec![word]);
            (open, at_start) = (true, false);
        } else if let Some(call) = calls.last_mut().filter(|_| open && !ends) {
            call.push(word);
        } else {
            open = false;
            at_start = ends || ["--", "sudo", "watch", "nsenter"].contains(&word.as_str());
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_become_anchors() {
        let mut seen = HashMap::new();
        assert_eq!(anchor("Run the agent, `by hand`", &mut seen), "run-the-agent-by-hand");
        assert_eq!(anchor("Run the agent by hand", &mut seen), "run-the-agent-by-hand-1");
        assert_eq!(anchor("shunt_drops_total", &mut seen), "shunt_drops_total");
    }

    #[test]
    fn calls_are_found_in_lines_of_a_shell() -> Result<()> {
        let check = |line: &str, expected: &[&str]| -> Result<()> {
            let found: Vec<String> = calls(line)?.into_iter().map(|call| call.join(" ")).collect();
            assert_eq!(found, expected, "{line}");
            Ok(())
        };
        check(
            "shunt service list -o json | jq '.[] | .name'   # a comment",
            &["shunt service list -o json"],
        )?;
        check("kubectl -n kube-system exec ds/shunt -- shunt check", &["shunt check"])?;
        check(
            "sudo target/debug/shunt cleanup && shunt check",
            &["target/debug/shunt cleanup", "shunt check"],
        )?;
        check("helm install shunt deploy/helm/shunt -n kube-system", &[])?;
        check("# shunt nonsense", &[])
    }
}

//! The tests that a change adds or changes, by the lines that differ.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::Context as _;

use super::change::Change;

/// Where the tests are that libtest runs, and the cases.
const TESTS: &str = "tests/tests";
const CASES: &str = "tests/cases";

/// Names of tests as the runner prints them; those of cases without their suite.
pub(crate) fn tests(root: &Path, change: &Change) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for file in change.files() {
        let module = module(file);
        if module.is_none() && !Path::new(file).starts_with(CASES) {
            continue;
        }
        // What is gone has no tests.
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        let lines =
            change.lines(root, file).with_context(|| format!("cannot tell what changed in {file}"))?;
        let has_changed = |place: &RangeInclusive<usize>| {
            lines.iter().any(|new| new.start() <= place.end() && place.start() <= new.end())
        };
        match module {
            Some(module) => {
                let changed = functions(&text).into_iter().filter(|(_, place)| has_changed(place));
                names.extend(changed.map(|(name, _)| format!("{module}::{name}")));
            }
            None => {
                let topic = Path::new(file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let changed = cases(&text).into_iter().filter(|(_, place)| has_changed(place));
                names.extend(changed.map(|(name, _)| format!("{topic}/{name}")));
            }
        }
    }
    Ok(names)
}

/// The module of a file of tests, with the name of its target first.
fn module(file: &str) -> Option<String> {
    let path = Path::new(file).strip_prefix(TESTS).ok()?;
    let is_root = path.ends_with("main.rs") || path.ends_with("mod.rs");
    let path = if is_root { path.parent()?.to_owned() } else { path.with_extension("") };
    let is_rust = Path::new(file).extension().is_some_and(|end| end == "rs");
    let words: Option<Vec<&str>> = path.iter().map(|word| word.to_str()).collect();
    words.filter(|words| is_rust && !words.is_empty()).map(|words| words.join("::"))
}

/// Names and lines, from 1, of the test functions of a file as rustfmt writes it.
fn functions(text: &str) -> Vec<(&str, RangeInclusive<usize>)> {
    let mut found = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((first, line)) = lines.next() {
        if line != "#[test]" {
            continue;
        }
        let name = lines.by_ref().find_map(|(_, line)| line.strip_prefix("fn ")?.split('(').next());
        let last = lines.by_ref().find(|(_, line)| *line == "}").map(|(last, _)| last);
        if let (Some(name), Some(last)) = (name, last) {
            found.push((name, first..=last));
        }
    }
    found
}

/// Names and lines of the cases of a file.
fn cases(text: &str) -> Vec<(&str, RangeInclusive<usize>)> {
    let lines = (1..).zip(text.lines());
    let starts: Vec<(usize, &str)> =
        lines.filter_map(|(number, line)| Some((number, line.strip_prefix("- name: ")?.trim()))).collect();
    let last = text.lines().count();
    let ends = starts.iter().skip(1).map(|(next, _)| next - 1).chain([last]);
    starts.iter().zip(ends).map(|((first, name), end)| (*name, *first..=end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_module() {
        let check = |file, wanted: Option<&str>| assert_eq!(module(file).as_deref(), wanted, "{file}");
        check("tests/tests/node/stage.rs", Some("node::stage"));
        check("tests/tests/node/fragments/peers.rs", Some("node::fragments::peers"));
        check("tests/tests/cluster/deploy/mod.rs", Some("cluster::deploy"));
        check("tests/tests/cluster/main.rs", Some("cluster"));
        check("tests/tests/cluster/roles.yaml", None);
        check("tests/src/lib.rs", None);
    }

    #[test]
    fn functions_and_cases_have_their_lines() {
        let text =
            "use a;\n#[test]\nfn one() {\n    x();\n}\n\nfn helper() {\n}\n#[test]\nfn two() -> R {\n}\n";
        assert_eq!(functions(text), [("one", 2..=5), ("two", 9..=11)]);
        let text = "# topic\n- name: a\n  x: 1\n- name: b\n  x: 2\n  y: 3\n";
        assert_eq!(cases(text), [("a", 2..=3), ("b", 4..=6)]);
    }
}

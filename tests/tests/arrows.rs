//! Dependencies between the agent's modules point one way, and each outside library has
//! one home. The compiler does not see to that inside a crate, so the source text is read.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// A module of the agent, what it may use of its siblings, and which of the libraries
/// with a home may be used in it.
struct Module {
    name: &'static str,
    siblings: &'static [&'static str],
    libraries: &'static [&'static str],
}

/// Modules that are not listed (the agent itself, `main`) tie the others together.
const MODULES: [Module; 12] = [
    Module { name: "meter", siblings: &[], libraries: &[] },
    Module { name: "model", siblings: &[], libraries: &[] },
    Module { name: "plan", siblings: &["model"], libraries: &[] },
    Module { name: "tasks", siblings: &[], libraries: &["tokio"] },
    Module { name: "dataplane", siblings: &["model", "plan"], libraries: &[] },
    Module {
        name: "kernel",
        siblings: &["model", "plan", "dataplane", "meter", "tasks"],
        libraries: &[
            "aya",
            "aya_log",
            "aya_obj",
            "btf_rs",
            "rtnetlink",
            "netlink_packet_netfilter",
            "netlink_sys",
            "tokio",
        ],
    },
    Module {
        name: "watch",
        siblings: &["model", "meter", "tasks"],
        libraries: &[
            "http",
            "http_body_util",
            "hyper",
            "hyper_rustls",
            "hyper_timeout",
            "hyper_util",
            "kube",
            "k8s_openapi",
            "tokio",
        ],
    },
    Module { name: "health", siblings: &["model", "meter", "metrics", "serve"], libraries: &["tokio"] },
    Module { name: "metrics", siblings: &["meter", "serve"], libraries: &["pprof", "tokio"] },
    Module {
        name: "serve",
        siblings: &["model"],
        libraries: &["http", "http_body_util", "hyper", "hyper_util", "tokio"],
    },
    // Which has the type of a URL.
    Module { name: "config", siblings: &["model", "kernel"], libraries: &["http"] },
    Module {
        name: "cli",
        siblings: &["model", "plan", "dataplane", "kernel", "config", "tasks", "watch"],
        libraries: &["tokio"],
    },
];

/// Libraries that only some modules may know.
const HOUSED: [&str; 17] = [
    "aya",
    "aya_log",
    "aya_obj",
    "btf_rs",
    "http",
    "http_body_util",
    "hyper",
    "hyper_rustls",
    "hyper_timeout",
    "hyper_util",
    "k8s_openapi",
    "kube",
    "netlink_packet_netfilter",
    "netlink_sys",
    "pprof",
    "rtnetlink",
    "tokio",
];

/// Ways to read a clock.
const CLOCKS: [&str; 2] = ["Instant::now", "SystemTime"];

#[test]
fn dependencies_point_one_way() -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proxy-userspace/src");
    let mut wrong = Vec::new();
    for module in MODULES {
        let files = files_of(&source, module.name)?;
        assert!(!files.is_empty(), "no module {}: is the table out of date?", module.name);
        for file in files {
            let text = code(&fs::read_to_string(&file).with_context(|| file.display().to_string())?);
            let place = file.strip_prefix(&source)?;
            wrong.extend(complaints(&module, place, &text));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    Ok(())
}

fn complaints(module: &Module, place: &Path, text: &str) -> Vec<String> {
    let siblings = siblings_used(text, depth(place));
    let siblings = siblings.iter().filter(|name| {
        **name != module.name
            && MODULES.iter().any(|other| other.name == **name)
            && !module.siblings.contains(name)
    });
    let libraries = HOUSED.iter().filter(|name| !module.libraries.contains(name) && starts_path(text, name));
    let pure = ["model", "plan", "dataplane"].contains(&module.name);
    let clocks = CLOCKS.iter().filter(|name| pure && text.contains(**name));
    let used = siblings.chain(libraries).chain(clocks);
    used.map(|name| format!("{}: {} must not use {name}", place.display(), module.name)).collect()
}

/// The source files of a module, whether it is a file or a folder.
fn files_of(source: &Path, module: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![source.join(format!("{module}.rs")), source.join(module)];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            for entry in fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && path.is_file() {
            found.push(path);
        }
    }
    Ok(found)
}

/// How many `super` lead from a file to the root of the crate.
fn depth(place: &Path) -> usize {
    let folder = place.components().count() - 1;
    if place.ends_with("mod.rs") { folder } else { folder + 1 }
}

/// The text without comments.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    lines.collect::<Vec<_>>().join("\n")
}

/// The names directly below the root of the crate.
fn siblings_used(text: &str, depth: usize) -> BTreeSet<&str> {
    let roots = ["crate::".to_owned(), "super::".repeat(depth)];
    let mut names = BTreeSet::new();
    for root in roots {
        for (at, _) in text.match_indices(&root) {
            let before = &text[..at];
            if !before.ends_with("super::") && !before.ends_with(is_word) {
                names.extend(first_names(&text[at + root.len()..]));
            }
        }
    }
    names
}

/// The first name of a path, or of each path of a group.
fn first_names(rest: &str) -> Vec<&str> {
    let Some(group) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let (mut names, mut level, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => level += 1,
            '}' if level == 0 => {
                names.push(word(group[start..at].trim_start()));
                break;
            }
            '}' => level -= 1,
            ',' if level == 0 => {
                names.push(word(group[start..at].trim_start()));
                start = at + 1;
            }
            _ => {}
        }
    }
    names
}

/// Whether a path begins with this name.
fn starts_path(text: &str, name: &str) -> bool {
    let path = format!("{name}::");
    let mut places = text.match_indices(&path).map(|(at, _)| &text[..at]);
    places.any(|before| !before.ends_with(is_word) && !before.ends_with("::"))
}

fn word(text: &str) -> &str {
    &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())]
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[test]
fn the_reader_sees_every_way_to_name_a_module() {
    let check = |text, depth, expected: &[&str]| {
        assert_eq!(siblings_used(text, depth), expected.iter().copied().collect(), "{text}");
    };
    check("use crate::model::Service;", 2, &["model"]);
    check("use crate::{model::{self, x}, plan::y, kernel};", 2, &["kernel", "model", "plan"]);
    check("use super::super::plan::Row;", 2, &["plan"]);
    check("use super::super::x;", 3, &[]);
    check("other_crate::plan::x", 1, &[]);
    assert!(starts_path("use aya::Ebpf;", "aya"));
    assert!(!starts_path("use crate::kube::x; mykube::y", "kube"));
    assert_eq!(code("a // aya::x\nb"), "a \nb");
}

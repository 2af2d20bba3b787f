//! The table of fields is complete, and `docs/configuration.md` says what it says.

use std::{fmt::Write, path::Path};

use serde_json::Value;

use crate::config::{
    fields::{self, Field, KUBE_PROXY, SHUNT},
    kube_proxy::KubeProxyConfiguration,
    shunt::ShuntConfiguration,
};

/// Set to anything, it makes the test write the document instead of comparing it.
const REWRITE: &str = "SHUNT_WRITE_DOCS";

fn defaults<T: Default + serde::Serialize>() -> Value {
    serde_json::to_value(T::default()).unwrap()
}

/// Paths and default values of the fields of a document.
fn leaves(path: &str, value: &Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                leaves(&if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, value, found);
            }
        }
        leaf => found.push((path.to_owned(), leaf.clone())),
    }
}

fn complete(table: &'static [Field], defaults: &Value) {
    let mut found = Vec::new();
    leaves("", defaults, &mut found);
    let mut paths: Vec<_> = found.into_iter().map(|(path, _)| path).collect();
    let mut told: Vec<_> = table.iter().map(|field| field.path.to_owned()).collect();
    paths.sort();
    told.sort();
    assert_eq!(paths, told);
    assert!(paths.iter().all(|path| fields::find(table, path).is_some_and(|field| field.path == path)));
}

#[test]
fn every_field_has_its_fate() {
    complete(KUBE_PROXY, &defaults::<KubeProxyConfiguration>());
    complete(SHUNT, &defaults::<ShuntConfiguration>());
}

fn shown(default: &Value) -> String {
    match default {
        Value::Null => String::new(),
        Value::String(text) if text.is_empty() => String::new(),
        Value::Array(_) | Value::Object(_) => String::new(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

fn table(fields: &[Field], defaults: &Value, with_fate: bool) -> String {
    let mut text = if with_fate {
        "| field | default | here | a change counts | meaning |\n| --- | --- | --- | --- | --- |\n".to_owned()
    } else {
        "| field | default | a change counts | meaning |\n| --- | --- | --- | --- |\n".to_owned()
    };
    for field in fields {
        let pointer = format!("/{}", field.path.replace('.', "/"));
        let default = shown(defaults.pointer(&pointer).unwrap());
        let fate = if with_fate { format!(" {} |", field.fate.name()) } else { String::new() };
        let (path, takes, meaning) = (field.path, field.takes.name(), field.meaning);
        writeln!(text, "| `{path}` | {default} |{fate} {takes} | {meaning} |").unwrap();
    }
    text
}

/// The text with what stands between the marks of `name` replaced.
fn with_section(text: &str, name: &str, content: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let (before, rest) = text.split_once(&begin).expect("the mark of the beginning");
    let (_, after) = rest.split_once(&end).expect("the mark of the end");
    format!("{before}{begin}\n{content}\n{end}{after}")
}

#[test]
fn the_document_tells_what_the_tables_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let theirs = table(KUBE_PROXY, &defaults::<KubeProxyConfiguration>(), true);
    let ours = table(SHUNT, &defaults::<ShuntConfiguration>(), false);
    let wanted = with_section(&text, "KubeProxyConfiguration", &theirs);
    let wanted = with_section(&wanted, "ShuntConfiguration", &ours);
    if std::env::var_os(REWRITE).is_some() {
        std::fs::write(&path, wanted).unwrap();
    } else {
        assert!(text == wanted, "docs/configuration.md is out of date: run this test with {REWRITE}=1");
    }
}

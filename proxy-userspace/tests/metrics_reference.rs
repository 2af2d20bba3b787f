//! `docs/metrics.md` says what the tables of the modules say. `SHUNT_UPDATE=1` rewrites it.

use std::{collections::BTreeSet, fmt::Write, fs, path::PathBuf};

use proxy_userspace::{agent::reference, meter::Meter};

const BEGIN: &str = "<!-- begin of the generated part -->\n";
const END: &str = "<!-- end of the generated part -->\n";

#[test]
fn the_document_has_every_metric() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md"));
    let text = fs::read_to_string(&path).expect("docs/metrics.md");
    let (before, rest) = text.split_once(BEGIN).expect("where the generated part begins");
    let (_, after) = rest.split_once(END).expect("where the generated part ends");
    let expected = format!("{before}{BEGIN}{}{END}{after}", tables());
    if std::env::var_os("SHUNT_UPDATE").is_some() {
        fs::write(&path, expected).expect("docs/metrics.md");
    } else {
        assert!(text == expected, "docs/metrics.md is out of date: run this test with SHUNT_UPDATE=1");
    }
}

fn tables() -> String {
    let mut text = String::new();
    for (title, meters) in reference() {
        let _ =
            write!(text, "\n## {title}\n\n| name | type | labels | meaning |\n| --- | --- | --- | --- |\n");
        for Meter { name, kind, labels, help } in meters {
            let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "| `{name}` | {} | {labels} | {help} |", kind.name());
        }
    }
    text.push('\n');
    text
}

#[test]
fn names_follow_the_conventions() {
    let mut seen = BTreeSet::new();
    for meter in reference().into_iter().flat_map(|(_, meters)| meters) {
        assert!(seen.insert(meter.name), "{} twice", meter.name);
        let counts = meter.kind == proxy_userspace::meter::Kind::Counter;
        // kube-proxy calls a gauge so.
        let known = meter.name == "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
        assert_eq!(meter.name.ends_with("_total"), counts || known, "{}", meter.name);
        assert!(!meter.help.ends_with('.') && !meter.help.is_empty(), "{}", meter.name);
        let prefixes = ["shunt_", "kubeproxy_", "process_", "kubernetes_", "rest_client_"];
        assert!(prefixes.iter().any(|prefix| meter.name.starts_with(prefix)), "{}", meter.name);
    }
}

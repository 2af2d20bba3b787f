//! The chart rendered with sets of values, by Helm itself.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::{cleanup, documents::root, manifests, skip::skipped};

pub(super) const CHART: &str = "deploy/helm/shunt";
/// The namespace of the release.
pub(super) const NAMESPACE: &str = "kube-system";
/// Where `cargo xtask test cluster` has put the tools.
pub(super) const TOOLS: &str = "SHUNT_CHART_TOOLS";

/// Values that differ in what they make of the templates, by what they are called.
pub(super) fn value_sets() -> [(&'static str, Value); 9] {
    let monitored = json!({
        "podMonitor": {"enabled": true, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": true},
        "dashboard": {"enabled": true},
    });
    [
        ("defaults", json!({})),
        ("an API server by address", json!({"apiServer": {"host": "10.0.0.10", "port": 443}})),
        ("kube-proxy's ConfigMap", json!({"existingConfigMap": {"name": "kube-proxy"}})),
        ("no leave to enter pods", json!({"destroyPodSockets": false})),
        (
            "a configuration",
            json!({"config": {
                "kubeProxy": {"clusterCIDR": "10.244.0.0/16", "nodePortAddresses": ["primary"]},
                "shunt": {"socketLB": "host", "xdp": "auto", "loadBalancer": {"mode": "hybrid"}, "nodeTaint": "shunt.dev/agent-not-ready:NoSchedule"},
            }}),
        ),
        (
            "everything else",
            json!({
                "image": {"repository": "mirror.example/shunt", "digest": format!("sha256:{}", "a".repeat(64))},
                "imagePullSecrets": [{"name": "mirror"}],
                "privileged": true,
                "podLabels": {"team": "network"},
                "podAnnotations": {"example.org/x": "y"},
                "extraArgs": ["--datapath-log-level=off"],
                "extraEnv": [{"name": "RUST_BACKTRACE", "value": "1"}],
                "healthz": {"bindAddress": "[::]:10256"},
                "serviceAccount": {"name": "other", "annotations": {"example.org/x": "y"}},
                "nameOverride": "node-proxy",
            }),
        ),
        ("a host that is set up", json!({"hostSetup": {"enabled": true}})),
        ("cleanup", json!({"cleanup": {"enabled": true}})),
        ("monitoring", json!({"metrics": monitored})),
    ]
}

/// The program of that name, if there is one here.
pub(super) fn tool(name: &str) -> Option<PathBuf> {
    let folders: Vec<PathBuf> = match std::env::var_os(TOOLS) {
        Some(folder) => vec![folder.into()],
        None => std::env::split_paths(&std::env::var_os("PATH")?).collect(),
    };
    let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    if found.is_none() {
        skipped(&format!("no {name} here; `cargo xtask test cluster` builds one if there is a Go"));
    }
    found
}

pub(super) fn output(command: &mut Command) -> Result<String> {
    let output = command.current_dir(root()).output().with_context(|| format!("run {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{command:?}: {}{text}", String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

/// Everything that the chart renders with these values.
pub(super) fn render(helm: &Path, values: &Value) -> Result<Vec<Value>> {
    let (directory, _guard) = cleanup::directory("values")?;
    let file = directory.join("values.json");
    fs::write(&file, values.to_string())?;
    let mut command = Command::new(helm);
    command.args(["template", "shunt", CHART, "--namespace", NAMESPACE, "--values"]).arg(file);
    manifests::parse(&output(&mut command)?)
}

pub(super) fn find<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    objects.iter().find(|object| object["kind"] == kind).with_context(|| format!("no {kind}"))
}

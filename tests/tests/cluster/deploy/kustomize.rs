//! The kustomizations are what the chart renders.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::{documents::root, manifests};

use super::render::{TOOLS, output, render, tool};

const BASE: &str = "deploy/kustomize/base/shunt.yaml";
/// Written above the base.
const HEAD: &str =
    "# Rendered from deploy/helm/shunt; change the chart, then run the cluster tier with SHUNT_UPDATE=1.\n";
/// Without what only Helm wants to know.
fn without_helm(mut objects: Vec<Value>) -> Vec<Value> {
    for object in &mut objects {
        for labels in ["/metadata/labels", "/spec/template/metadata/labels"] {
            if let Some(labels) = object.pointer_mut(labels).and_then(Value::as_object_mut) {
                labels.remove("app.kubernetes.io/managed-by");
            }
        }
    }
    objects
}

fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let name = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    objects.into_iter().map(|object| (name(&object), object)).collect()
}

#[test]
fn kustomize_makes_what_the_chart_makes() -> Result<()> {
    let (Some(helm), Some(kustomize)) = (tool("helm"), tool("kustomize")) else { return Ok(()) };
    let rendered = without_helm(render(&helm, &json!({}))?);
    if std::env::var_os("SHUNT_UPDATE").is_some() {
        let documents: Result<Vec<String>, _> = rendered.iter().map(serde_norway::to_string).collect();
        fs::write(root().join(BASE), format!("{HEAD}{}", documents?.join("---\n")))?;
    }
    for (folder, values) in [
        ("base", json!({})),
        ("overlays/kubeadm", json!({"existingConfigMap": {"name": "kube-proxy"}})),
        ("overlays/restricted", json!({"config": {"shunt": {"socketLB": "host"}}})),
    ] {
        let folder = format!("deploy/kustomize/{folder}");
        let built = by_name(manifests::parse(&output(Command::new(&kustomize).args(["build", &folder]))?)?);
        let expected = by_name(without_helm(render(&helm, &values)?));
        ensure!(
            built.keys().eq(expected.keys()),
            "{folder}: {:?} and not {:?}; see {TOOLS}",
            built.keys(),
            expected.keys()
        );
        for (name, object) in &expected {
            ensure!(
                built[name] == *object,
                "{folder}: {name} is\n{}\nand not as the chart has it\n{}\nafter a change of the chart, \
                 run this test with SHUNT_UPDATE=1",
                serde_norway::to_string(&built[name])?,
                serde_norway::to_string(object)?,
            );
        }
    }
    Ok(())
}

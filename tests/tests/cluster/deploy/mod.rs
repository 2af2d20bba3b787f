//! What lies under `deploy`: the chart renders with every set of values, the API server takes
//! what it renders, the kustomizations are the same things, and the agent needs no other rights
//! in the API than the chart gives it.

mod chart;
mod kustomize;
mod render;

use std::{collections::BTreeSet, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::{
    agent::{Agent, Line, SocketLb},
    confine::Confinement,
    control_plane::{ControlPlane, Options},
    documents::root,
    manifests,
    netns::Namespace,
    probe::Proto,
};

use self::render::{CHART, NAMESPACE, find, output, render, tool, value_sets};
use crate::{
    objects,
    world::{FIRST, VIP, World},
};

/// A control plane of its own with kinds that monitoring brings along.
fn control_plane() -> Result<(Namespace, ControlPlane)> {
    let namespace = Namespace::create("deploy")?;
    namespace.ip("link set lo up\n")?;
    let control_plane = ControlPlane::start(&namespace, Options::default())?;
    let kinds = manifests::parse(include_str!("../../../manifests/monitoring-kinds.yaml"))?;
    control_plane.apply(&namespace, &kinds, false)?;
    Ok((namespace, control_plane))
}

#[test]
fn the_api_server_takes_what_the_chart_renders() -> Result<()> {
    let Some(helm) = tool("helm") else { return Ok(()) };
    output(Command::new(&helm).args(["lint", "--strict", CHART]))?;
    let (namespace, control_plane) = control_plane()?;
    for (name, values) in value_sets() {
        let objects = render(&helm, &values).context(name)?;
        control_plane.apply(&namespace, &objects, true).context(name)?;
    }
    Ok(())
}

/// kube-proxy's DaemonSet as kubeadm makes it, as far as the patch is concerned.
fn daemon_set_of_kubeadm() -> Value {
    let labels = json!({"k8s-app": "kube-proxy"});
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let container = json!({
        "name": "kube-proxy",
        "image": "registry.k8s.io/kube-proxy:v1.36.3",
        "command": [
            "/usr/local/bin/kube-proxy",
            "--config=/var/lib/kube-proxy/config.conf",
            "--hostname-override=$(NODE_NAME)",
        ],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"privileged": true},
        "volumeMounts": [mount("kube-proxy", "/var/lib/kube-proxy"), mount("xtables-lock", "/run/xtables.lock")],
    });
    let volumes = json!([
        {"name": "kube-proxy", "configMap": {"name": "kube-proxy"}},
        {"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
    ]);
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"hostNetwork": true, "containers": [container], "volumes": volumes},
            },
        },
    })
}

/// The image changes and mounts are added; what was there stays.
#[test]
fn the_daemon_set_of_kube_proxy_takes_the_patch() -> Result<()> {
    let (namespace, control_plane) = control_plane()?;
    let before = daemon_set_of_kubeadm();
    control_plane.apply(&namespace, std::slice::from_ref(&before), false)?;
    let patch = manifests::parse(&std::fs::read_to_string(root().join("deploy/kube-proxy/patch.yaml"))?)?;
    let after = control_plane.patch(&namespace, &before, patch.first().context("the patch")?)?;
    let (before, after) = (&before["spec"]["template"]["spec"], &after["spec"]["template"]["spec"]);
    let container = &after["containers"][0];
    ensure!(container["image"].as_str().is_some_and(|image| image.contains("shunt")), "{container}");
    ensure!(container["command"] == before["containers"][0]["command"], "{container}");
    ensure!(after["containers"].as_array().map(Vec::len) == Some(1), "{after}");
    for (list, key, expected) in [
        (
            &container["volumeMounts"],
            "mountPath",
            ["/var/lib/kube-proxy", "/run/xtables.lock", "/host/bpf", "/host/cgroup"],
        ),
        (&after["volumes"], "name", ["kube-proxy", "xtables-lock", "bpffs", "cgroup"]),
    ] {
        let found: BTreeSet<&str> =
            list.as_array().into_iter().flatten().filter_map(|one| one[key].as_str()).collect();
        ensure!(found == BTreeSet::from(expected), "{list}");
    }
    Ok(())
}

/// The service account of the chart, and nobody else.
#[test]
fn the_agent_needs_no_other_rights_than_the_charts() -> Result<()> {
    let Some(helm) = tool("helm") else { return Ok(()) };
    let objects = render(&helm, &json!({}))?;
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["snatPortRange"] = "1024-1027".into();
    let mut world = World::configured(&shunt)?;
    let rights = |object: &&Value| object["kind"] != "DaemonSet";
    world.install(&objects.iter().filter(rights).cloned().collect::<Vec<_>>())?;
    if let Some(confinement) = Confinement::of(find(&objects, "DaemonSet")?)? {
        world.confine_agent(confinement);
    }
    world.put(&[objects::service(), objects::slice(&[FIRST])])?;
    world.start_agent_as(NAMESPACE, "shunt")?;
    world.soon_reaches("first", Proto::Tcp, "10.0.0.2", VIP)?;
    // An event is published when source ports run out.
    world.stay_open(4, "203.0.113.2", "192.168.0.2:30080")?;
    world.soon_dropped("snat-ports-exhausted", Proto::Tcp, "203.0.113.2", "192.168.0.2:30080")?;
    world.soon_tells((objects::Kind::Node, objects::NODE), "SnatPortsAlmostExhausted")?;
    let refused = |line: &&Line| {
        let text = line.text();
        ["orbidden", "does not show", "not available here", "cannot publish"].iter().any(|w| text.contains(w))
    };
    let lines = world.agent_log();
    let refused: Vec<&str> = lines.iter().filter(refused).map(|line| line.text()).collect();
    ensure!(refused.is_empty(), "{}", refused.join("\n"));
    Ok(())
}

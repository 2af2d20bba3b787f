//! What values make of the chart.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::{cleanup, confine::Confinement};

use super::render::{find, output, render, tool, value_sets};

#[test]
fn values_that_mean_nothing_are_refused() -> Result<()> {
    let Some(helm) = tool("helm") else { return Ok(()) };
    for (values, named) in [
        (json!({"imagee": {}}), "imagee"),
        // What YAML makes of an `off` without quotes.
        (json!({"config": {"shunt": {"socketLB": false}}}), "socketLB"),
        (json!({"config": {"kubeProxy": {"healthzBindAddress": "0.0.0.0:1"}}}), "healthzBindAddress"),
        (json!({"extraCapabilities": ["CAP_SYS_ADMIN"]}), "extraCapabilities"),
        (json!({"apiServer": {"port": "https"}}), "port"),
    ] {
        let error = render(&helm, &values).err().with_context(|| format!("{values} was taken"))?;
        ensure!(error.to_string().contains(named), "{values}: {error:#}");
    }
    Ok(())
}

#[test]
fn values_become_what_they_say() -> Result<()> {
    let Some(helm) = tool("helm") else { return Ok(()) };
    for (name, values) in value_sets() {
        let objects = render(&helm, &values).context(name)?;
        let daemon_set = find(&objects, "DaemonSet").context(name)?;
        let pod = &daemon_set["spec"]["template"]["spec"];
        ensure!(pod["hostNetwork"] == true && pod["hostPID"].is_null(), "{name}: {pod}");
        let confinement = if name == "cleanup" { None } else { Confinement::of(daemon_set)? };
        let container = &pod["containers"][0];
        let env = |wanted: &str| {
            let mut all = container["env"].as_array().into_iter().flatten();
            all.find(|env| env["name"] == wanted).map(|env| env["value"].clone())
        };
        match name {
            "defaults" => {
                ensure!(confinement.is_some_and(|confinement| confinement.has("SYS_ADMIN")), "{container}");
                ensure!(env("KUBERNETES_SERVICE_HOST").is_none(), "{container}");
            }
            "an API server by address" => {
                ensure!(env("KUBERNETES_SERVICE_HOST") == Some("10.0.0.10".into()), "{container}");
                ensure!(env("KUBERNETES_SERVICE_PORT") == Some("443".into()), "{container}");
            }
            "no leave to enter pods" | "a configuration" => {
                let role = find(&objects, "ClusterRole")?.to_string();
                ensure!(role.contains(r#"["get","patch"]"#) == (name == "a configuration"), "{role}");
                ensure!(confinement.is_some_and(|confinement| !confinement.has("SYS_ADMIN")), "{container}");
            }
            "kube-proxy's ConfigMap" => {
                ensure!(find(&objects, "ConfigMap").is_err(), "a ConfigMap beside kube-proxy's");
                let config = "--config=/var/lib/kube-proxy/config.conf";
                ensure!(container["args"][0] == config, "{container}");
            }
            "cleanup" => {
                ensure!(pod["initContainers"][0]["command"] == json!(["shunt", "cleanup"]), "{pod}");
            }
            "everything else" => ensure!(confinement.is_none(), "{container}"),
            _ => {}
        }
    }
    Ok(())
}

/// `shunt config check` takes the configuration of every set of values.
#[test]
fn the_agent_takes_the_configuration_that_the_chart_renders() -> Result<()> {
    let Some(helm) = tool("helm") else { return Ok(()) };
    let shunt = tests::process::binary("shunt")?;
    let (directory, _guard) = cleanup::directory("config")?;
    for (name, values) in value_sets() {
        let objects = render(&helm, &values).context(name)?;
        let Some(text) = find(&objects, "ConfigMap").ok().and_then(|map| map["data"]["config.yaml"].as_str())
        else {
            continue;
        };
        let file = directory.join("config.yaml");
        fs::write(&file, text)?;
        output(Command::new(&shunt).args(["config", "check"]).arg(&file)).context(name)?;
    }
    output(Command::new(&shunt).args(["config", "check", "deploy/systemd/config.yaml"])).map(drop)
}

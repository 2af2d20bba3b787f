//! `shunt config check`: what a configuration file means, or everything that is wrong with
//! it. Looks at nothing but the file.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    config::{Config, ConfigError, Maps, Overrides, Reason},
    model::{DetectLocal, NodePortAddresses, SocketLb},
};

/// `shunt config`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration file by the rules of kube-proxy and show what it means.
    ///
    /// All wrong fields are named together, by their path in the file; the exit status is
    /// then 1. Notes tell which fields mean something else here, or nothing.
    #[command(after_help = "Examples:\n  shunt config check /etc/shunt/config.yaml\n  \
                      shunt config check config.yaml -o json | jq '.errors[].path'")]
    Check(CheckArgs),
}

/// `shunt config check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// KubeProxyConfiguration and ShuntConfiguration documents.
    pub file: PathBuf,
    /// A field of KubeProxyConfiguration that does not exist is an error, not a note.
    #[arg(long)]
    pub strict: bool,
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
    pub output: CheckOutput,
}

/// How the result of a check is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CheckOutput {
    /// For people.
    #[default]
    Yaml,
    /// For programs.
    Json,
}

/// What came out of a check.
#[derive(Debug)]
pub struct Checked {
    /// Whether the agent would start with the file.
    pub valid: bool,
    /// What to print.
    pub report: String,
}

/// Carries it out.
pub fn run(command: &ConfigCommand) -> Result<ExitCode> {
    let ConfigCommand::Check(args) = command;
    let checked = check(args)?;
    super::print(&checked.report)?;
    Ok(if checked.valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks a file.
pub fn check(args: &CheckArgs) -> Result<Checked> {
    match Config::load(Some(&args.file), Overrides::default()) {
        Ok(config) => {
            let report = json!({
                "valid": !args.strict || config.notes.iter().all(|note| note.reason != Reason::Unknown),
                "effective": effective(&config),
                "notes": config.notes,
                "hash": config.hash,
            });
            Ok(Checked { valid: report["valid"] == true, report: text(&report, args.output)? })
        }
        Err(ConfigError::Invalid(problems)) => {
            let problems: Vec<_> = problems.into_iter().map(|p| (p.path, p.reason)).collect();
            Ok(Checked { valid: false, report: wrong(&args.file, &problems, args.output)? })
        }
        Err(other) => Err(other).context("configuration"),
    }
}

fn wrong(file: &Path, problems: &[(String, String)], output: CheckOutput) -> Result<String> {
    if output == CheckOutput::Json {
        let errors: Vec<_> =
            problems.iter().map(|(path, reason)| json!({"path": path, "reason": reason})).collect();
        return text(&json!({"valid": false, "errors": errors}), output);
    }
    let lines = problems.iter().map(|(path, reason)| format!("\n  {path}: {reason}"));
    Ok(format!("{} has wrong fields:{}", file.display(), lines.collect::<String>()))
}

fn text(value: &impl Serialize, output: CheckOutput) -> Result<String> {
    match output {
        CheckOutput::Yaml => {
            serde_norway::to_string(value).map(|text| text.trim_end().to_owned()).context("cannot write YAML")
        }
        CheckOutput::Json => serde_json::to_string_pretty(value).context("cannot write JSON"),
    }
}

/// The values the agent would run with, under the names of the file where it has one.
fn effective(config: &Config) -> Value {
    let (model, timeouts) = (&config.model, &config.timeouts);
    let seconds = |duration: std::time::Duration| json!(format!("{}s", duration.as_secs_f64()));
    json!({
        "hostnameOverride": config.node_name,
        "kubeconfig": config.kubeconfig,
        "detectLocal": detect_local(&model.detect_local),
        "masqueradeAll": model.masquerade_all,
        "nodePortAddresses": node_port_addresses(&model.node_port_addresses),
        "conntrack": {
            "tcpEstablishedTimeout": seconds(timeouts.tcp_established),
            "tcpCloseWaitTimeout": seconds(timeouts.tcp_close_wait),
            "tcpClosedTimeout": seconds(timeouts.tcp_closed),
            "udpTimeout": seconds(timeouts.udp),
            "udpStreamTimeout": seconds(timeouts.udp_stream),
        },
        "syncPeriod": seconds(config.sync_period),
        "minSyncPeriod": seconds(config.min_sync_period),
        "apiServers": config.api_servers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "socketLB": match model.socket_lb {
            SocketLb::All => "all",
            SocketLb::Host => "host",
            SocketLb::Off => "off",
        },
        "answerEcho": model.answer_echo,
        "reserveNodePorts": model.reserve_node_ports,
        "looseTCP": model.loose_tcp,
        "loadBalancer": {
            "mode": model.load_balancer.mode.name(),
            "algorithm": model.load_balancer.algorithm.name(),
        },
        "attach": config.attach,
        "xdp": config.xdp,
        "healthzBindAddress": config.health,
        "metricsBindAddress": config.metrics,
        "bindAddressHardFail": config.bind_hard_fail,
        "masqueradeAddresses": model.masquerade_addresses,
        "snatPortRange": format!("{}-{}", model.snat_port_first, model.snat_port_last),
        "nodePortRange": format!("{}-{}", config.node_port_range.start(), config.node_port_range.end()),
        "nodeTaint": config.node_taint.as_ref().map(ToString::to_string),
        "maps": Maps::of(config.maps, config.conntrack_memory),
        "bpffs": config.bpffs,
        "cgroup": config.cgroup,
        "logging": {
            "format": config.logging.format,
            "level": config.logging.level,
            "datapathLevel": config.logging.datapath_level,
        },
    })
}

fn detect_local(detect: &DetectLocal) -> Value {
    match detect {
        DetectLocal::Off => json!({"mode": "off"}),
        DetectLocal::ClusterCidr(nets) => json!({"mode": "ClusterCIDR", "clusterCIDR": nets}),
        DetectLocal::NodeCidr => json!({"mode": "NodeCIDR"}),
        DetectLocal::BridgeInterface(name) => json!({"mode": "BridgeInterface", "bridgeInterface": name}),
        DetectLocal::InterfaceNamePrefix(prefix) => {
            json!({"mode": "InterfaceNamePrefix", "interfaceNamePrefix": prefix})
        }
    }
}

fn node_port_addresses(addresses: &NodePortAddresses) -> Value {
    match addresses {
        NodePortAddresses::Primary => json!(["primary"]),
        NodePortAddresses::Ranges(nets) => json!(nets),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(fields: &str, output: CheckOutput) -> Checked {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text =
            format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{fields}\n");
        std::fs::write(file.path(), text).unwrap();
        check(&CheckArgs { file: file.path().to_owned(), strict: false, output }).unwrap()
    }

    #[test]
    fn right_files_show_what_they_mean() {
        let checked =
            report("mode: ipvs\nclusterCIDR: 10.0.0.9/8\nconntrack: {udpTimeout: 90s}", CheckOutput::Json);
        assert!(checked.valid);
        let shown: Value = serde_json::from_str(&checked.report).unwrap();
        let effective = &shown["effective"];
        assert_eq!(effective["detectLocal"], json!({"mode": "ClusterCIDR", "clusterCIDR": ["10.0.0.0/8"]}));
        assert_eq!(effective["conntrack"]["udpTimeout"], "90s");
        assert_eq!(effective["loadBalancer"], json!({"mode": "snat", "algorithm": "random"}));
        assert_eq!(shown["notes"][0]["field"], "mode");
        assert!(report("", CheckOutput::Yaml).report.contains("nodePortAddresses:\n  - primary"));
    }

    #[test]
    fn wrong_files_show_every_path() {
        let fields = "nodePortAddresses: [foo]\nconntrack: {min: -1}\nmode: fast";
        let checked = report(fields, CheckOutput::Yaml);
        assert!(!checked.valid);
        for path in ["  nodePortAddresses[0]: ", "  conntrack.min: ", "  mode: "] {
            assert!(checked.report.contains(path), "{path} is not in {}", checked.report);
        }
        let shown: Value = serde_json::from_str(&report(fields, CheckOutput::Json).report).unwrap();
        assert_eq!(shown["errors"].as_array().map(Vec::len), Some(3));
    }
}

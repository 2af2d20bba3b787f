//! The configuration: a file that changes under a running agent, and kube-proxy's own files and
//! arguments.

use crate::{
    http::{METRICS, get},
    metrics::wait_for,
    operator::list,
    world::{LINE, Open, answer, is_served, soon, two_nodes},
};
use anyhow::{Context, Result, ensure};
use proxy_userspace::config::Config;
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
};
use tests::{
    agent::{Agent, SocketLb},
    cleanup,
    probe::Bulk,
    process::{Spawn, binary},
    skip::skipped,
    topology::cluster::{
        Cluster, Node,
        Origin::{self, Client, Node as Host, Pod},
    },
};

const NODE_PORT: &str = "192.168.50.12:30190";
const CLUSTER_IP: &str = "10.96.0.20:90";

/// The fields of kube-proxy's document that the nodes have, and others.
pub(crate) fn kube_proxy(others: Value) -> Value {
    let mut fields = json!({"detectLocalMode": "ClusterCIDR", "clusterCIDR": "10.244.0.0/16,fd00:244::/32"});
    if let (Some(fields), Some(others)) = (fields.as_object_mut(), others.as_object()) {
        fields.extend(others.clone());
    }
    fields
}

fn configure(node: &Node, fields: Value, socket_lb: SocketLb) -> Result<()> {
    node.agent.configure(&kube_proxy(fields), &Agent::small(socket_lb))
}

/// Waits until the agent has taken up what its file says.
pub(crate) fn wait_in_force(node: &Node) -> Result<()> {
    let hash = Config::hash_of(&fs::read_to_string(node.agent.config())?);
    node.agent.wait_for("that it has read its file again", |line| {
        line.message() == "the configuration file was read again" && line.field("hash") == hash.as_str()
    })
}

fn change(node: &Node, fields: Value, socket_lb: SocketLb) -> Result<()> {
    configure(node, fields, socket_lb)?;
    wait_in_force(node)
}

fn goes_on(open: &Open<'_>) -> Result<()> {
    open.outlives(Bulk { up: 1000, down: 1000 }).map(drop)
}

/// Whether the server sees the client itself.
fn sees_client(cluster: &Cluster, from: Origin, to: &str) -> Result<bool> {
    let (client, _) = cluster.host(from);
    let saw = answer(cluster, from, LINE, to)?.saw.ip();
    Ok(saw == client.v4 || saw == client.v6)
}

#[test]
fn a_changed_file_is_in_force_and_connections_go_on() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let node = &cluster.nodes[1];
    let (outside, inside) =
        (Open::new(&cluster, Client, NODE_PORT)?, Open::new(&cluster, Pod(1, 1), CLUSTER_IP)?);
    assert!(sees_client(&cluster, Pod(1, 1), CLUSTER_IP)?);

    let elsewhere = json!({"nodePortAddresses": ["203.0.113.0/24"], "nftables": {"masqueradeAll": true}});
    change(node, elsewhere, SocketLb::Off)?;
    ensure!(!is_served(&cluster, Client, NODE_PORT)?, "the NodePort is on an address it was taken from");
    ensure!(!sees_client(&cluster, Pod(1, 1), CLUSTER_IP)?, "not masqueraded");
    goes_on(&outside)?;
    goes_on(&inside)?;

    change(node, json!({"metricsBindAddress": "127.0.0.1:10349"}), SocketLb::All)?;
    answer(&cluster, Client, LINE, NODE_PORT)?;
    ensure!(sees_client(&cluster, Pod(1, 1), CLUSTER_IP)?, "masqueraded");
    let rows = || Ok::<_, anyhow::Error>(list(&cluster, 1, "conn")?.len());
    let before = rows()?;
    let by_socket = Open::numbered(&cluster, Pod(1, 1), CLUSTER_IP, 1)?;
    assert_eq!(rows()?, before, "a connection that socket LB translates has no row");

    change(node, json!({}), SocketLb::Off)?;
    for open in [&outside, &inside, &by_socket] {
        goes_on(open)?;
    }
    answer(&cluster, Pod(1, 1), LINE, CLUSTER_IP)?;
    ensure!(rows()? > before, "a connection on the packet path has rows");
    wait_for(node, r#"shunt_config_reloads_total{result="applied"} 3"#)
}

#[test]
fn a_bad_file_is_refused_and_the_old_one_stays() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let node = &cluster.nodes[1];
    let good = fs::read_to_string(node.agent.config())?;
    let open = Open::new(&cluster, Client, NODE_PORT)?;
    configure(
        node,
        json!({"nodePortAddresses": ["foo"], "conntrack": {"min": -1}, "nftables": {"masqueradeAll": true}}),
        SocketLb::Off,
    )?;
    for field in ["nodePortAddresses[0]", "conntrack.min"] {
        node.agent.wait_for(field, |line| line.level() == "ERROR" && line.field("field") == field)?;
    }
    wait_for(node, "shunt_config_last_reload_failed 1")?;
    wait_for(node, &format!(r#"shunt_config_info{{hash="{}"}} 1"#, Config::hash_of(&good)))?;
    ensure!(sees_client(&cluster, Pod(1, 1), CLUSTER_IP)?, "half of a bad file is in force");
    goes_on(&open)?;

    // Half a file, no file, and the right one again.
    fs::write(node.agent.config(), "")?;
    node.agent.wait_for("that the file is empty", |line| line.field("reason") == "the file is empty")?;
    fs::remove_file(node.agent.config())?;
    node.agent.wait_for("that there is no file", |line| {
        line.field("reason").as_str().is_some_and(|reason| reason.starts_with("cannot read the file"))
    })?;
    change(node, json!({"hostnameOverride": "other", "nftables": {"masqueradeAll": true}}), SocketLb::Off)?;
    wait_for(node, "shunt_config_last_reload_failed 0")?;
    ensure!(!sees_client(&cluster, Pod(1, 1), CLUSTER_IP)?, "the good file is in force");
    let shown = get(node, METRICS, "/configz")?;
    let theirs: Value = serde_json::from_slice(&shown.body)?;
    let theirs = &theirs["kubeproxy.config.k8s.io"];
    ensure!(theirs["nftables"]["masqueradeAll"] == true && theirs["hostnameOverride"] == "node2", "{theirs}");
    goes_on(&open)
}

#[test]
fn the_mode_says_which_addresses_take_node_ports() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let node = &cluster.nodes[1];
    let loopback = "127.0.0.1:30190";
    ensure!(!is_served(&cluster, Host(1), loopback)?, "not asked for");
    // The address of its bridge is not its primary one.
    let second = "10.244.2.1:30190";
    ensure!(!is_served(&cluster, Pod(1, 1), second)?, "not asked for");
    change(node, json!({"mode": "iptables", "conntrack": {"udpTimeout": "77s"}}), SocketLb::Off)?;
    answer(&cluster, Host(1), LINE, loopback)?;
    answer(&cluster, Pod(1, 1), LINE, second)?;
    answer(&cluster, Client, LINE, NODE_PORT)?;
    change(node, json!({"mode": "iptables", "iptables": {"localhostNodePorts": false}}), SocketLb::Off)?;
    ensure!(!is_served(&cluster, Host(1), loopback)?, "it was taken away");
    answer(&cluster, Pod(1, 1), LINE, second)?;
    let timeout = || fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_udp_timeout");
    match node.host.netns.run(|| Ok(timeout()))? {
        Ok(seconds) => assert_eq!(seconds.trim(), "77", "nf_conntrack of the host"),
        Err(error) => skipped(&format!("nf_conntrack is not loaded: {error}")),
    }
    Ok(())
}

#[test]
fn init_only_and_cleanup_end_when_they_are_done() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    let node = &mut cluster.nodes[1];
    node.agent.stop()?;
    let pins = node.agent.pins();
    let run = |flag: &str| -> Result<()> {
        let mut command = Command::new(binary("shunt")?);
        command.arg("--config").arg(node.agent.config()).arg("--bpffs").arg(&pins).arg(flag);
        let output = command.netns(&node.host.netns)?.output()?;
        ensure!(output.status.success(), "{flag}: {output:?}");
        Ok(())
    };
    run("--cleanup")?;
    ensure!(!pins.exists(), "pins are left");
    run("--init-only=true")?;
    ensure!(pins.exists(), "there is no directory for pins");
    let accepts =
        node.host.netns.run(|| Ok(fs::read_to_string("/proc/sys/net/ipv4/conf/lo/route_localnet")?))?;
    assert_eq!(accepts.trim(), "1");
    Ok(())
}

/// A mounted ConfigMap: the file is a link through `..data`, which is swapped as a whole.
#[test]
fn a_swapped_config_map_is_read() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    let node = &mut cluster.nodes[1];
    let file = node.agent.config();
    let folder = file.parent().context("a folder")?.to_owned();
    node.agent.stop()?;
    for version in ["..1", "..2"] {
        fs::create_dir(folder.join(version))?;
    }
    let text = fs::read_to_string(&file)?;
    fs::rename(&file, folder.join("..1/config.yaml"))?;
    fs::write(folder.join("..2/config.yaml"), text.replace("10.244.0.0/16", "10.99.0.0/16") + "# 2\n")?;
    symlink("..1", folder.join("..data"))?;
    symlink("..data/config.yaml", &file)?;
    node.agent.start(&node.host.netns)?;
    node.agent.wait_in_sync()?;
    symlink("..2", folder.join("..data_tmp"))?;
    fs::rename(folder.join("..data_tmp"), folder.join("..data"))?;
    wait_in_force(&cluster.nodes[1])?;
    // Its pods are none of the cluster's any more.
    soon(|| {
        ensure!(!sees_client(&cluster, Pod(1, 1), NODE_PORT)?, "a client outside is masqueraded");
        Ok(())
    })
}

fn shunt(program: &Path, arguments: &[&str]) -> Result<Output> {
    Command::new(program).args(arguments).output().context("shunt")
}

#[test]
fn kube_proxys_files_and_arguments_are_understood() -> Result<()> {
    let (folder, _guard) = cleanup::directory("kube-proxy")?;
    let program = folder.join("kube-proxy");
    symlink(binary("shunt")?, &program)?;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proxy-userspace/src/config/tests/kubeadm.conf");
    let file = file.to_string_lossy();

    let checked = shunt(&binary("shunt")?, &["config", "check", &file, "-o", "json"])?;
    let report: Value = serde_json::from_slice(&checked.stdout)?;
    ensure!(checked.status.success() && report["valid"] == true, "{report}");

    let written = folder.join("written.yaml").to_string_lossy().into_owned();
    let config = format!("--config={file}");
    let arguments = [&*config, "--hostname-override=node-7", "-v=5", "--write-config-to", &written];
    let output = shunt(&program, &arguments)?;
    ensure!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(&written)?;
    ensure!(text.contains("hostnameOverride: node-7") && text.contains("verbosity: 5"), "{text}");
    let again = shunt(&binary("shunt")?, &["config", "check", "--strict", &written])?;
    ensure!(again.status.success(), "{again:?}");

    let flags = [
        "--cluster_cidr=10.0.0.0/8",
        "--proxy-mode",
        "ipvs",
        "--ipvs-udp-timeout=7s",
        "--masquerade-all",
        "--feature-gates=AllowServiceExternalIPs=false,WinDSR=true",
        "--write-config-to",
        &written,
    ];
    let output = shunt(&program, &flags)?;
    ensure!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(&written)?;
    for line in [
        "clusterCIDR: 10.0.0.0/8",
        "mode: ipvs",
        "udpTimeout: 7s",
        "masqueradeAll: true",
        "AllowServiceExternalIPs: false",
    ] {
        ensure!(text.contains(line), "{line} is not in {text}");
    }
    let wrong = shunt(&program, &["--conntrack-min=-1", "--proxy-mode=fast", "--write-config-to", &written])?;
    let said = String::from_utf8_lossy(&wrong.stderr);
    ensure!(
        !wrong.status.success() && said.contains("--conntrack-min") && said.contains("--proxy-mode"),
        "{said}"
    );
    Ok(())
}

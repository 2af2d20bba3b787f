//! Pods that opt out of socket LB, and threads that the kernel opens sockets by, are
//! served by the packet path.

use crate::world::{LINE, answer, soon, two_nodes};
use anyhow::{Context, Result, bail, ensure};
use proxy_common::{Ip4, Ip6, maps::conntrack::Role};
use proxy_userspace::kernel::{PinnedMaps, Pins};
use serde_json::{Value, json};
use std::{
    net::{IpAddr, SocketAddr},
    process::{Command, Stdio},
};
use tests::{
    agent::SocketLb,
    cgroup::Cgroup,
    manifests,
    probe::{Dial, Proto, Worker},
    process::Spawn,
    topology::cluster::{Cluster, Origin::Pod},
};

const UID: &str = "0b2c6e1e-51d4-4f0c-9c46-3c1c3f1a9f10";
/// TCP and UDP, both families.
const SERVICE: [(Proto, &str); 4] = [
    (Proto::Tcp, "10.96.0.20:90"),
    (Proto::Tcp, "[fd00:96::20]:90"),
    (Proto::Udp, "10.96.0.20:53"),
    (Proto::Udp, "[fd00:96::20]:53"),
];
const SAID: &str = "pods without socket LB";

/// A process in a cgroup as kubelet and systemd make it for the pod with [`UID`].
fn pod_worker(cluster: &Cluster) -> Result<(Worker, Cgroup)> {
    let name = format!("kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
    let cgroup = cluster.nodes[0].agent.cgroup.child(&name)?;
    Ok((Worker::start(Some(&cgroup))?, cgroup))
}

fn pod(labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "meshed", "namespace": "mesh", "uid": UID, "labels": labels},
        "spec": {"nodeName": "node1", "containers": []},
    })
}

/// Which of both ways a connection took: only one that packets go has a row in `conntrack` of the client's node.
#[derive(Debug, PartialEq)]
enum Way {
    Socket,
    Packet,
}

fn way(cluster: &Cluster, worker: &Worker, proto: Proto, to: &str) -> Result<Way> {
    let before = rows(cluster)?;
    let to: SocketAddr = to.parse()?;
    // From the second pod of the first node, which is no backend.
    let netns = &cluster.nodes[0].pods[1].netns;
    let outcome = worker.dial(&Dial::new(netns, proto, to))?.remove(0);
    let answer = outcome.answer(format_args!("{proto} {to}"))?;
    ensure!(answer.server == "pod1-1" && answer.peer == to, "{answer}");
    let after = rows(cluster)?;
    match (after.0 > before.0, after.1 > before.1) {
        (true, false) => Ok(Way::Socket),
        (true, true) => Ok(Way::Packet),
        grown => bail!("{proto} {to}: connections counted, and rows of conntrack: {grown:?}"),
    }
}

/// Connections that were counted, and those in `conntrack`.
fn rows(cluster: &Cluster) -> Result<(u64, usize)> {
    let maps = PinnedMaps::open(Pins::new(cluster.nodes[0].agent.pins()))?;
    let opened = maps.opened::<Ip4>()?.into_iter().chain(maps.opened::<Ip6>()?).map(|(_, count)| count).sum();
    let v4 = maps.conntrack::<Ip4>()?.into_iter().filter(|(_, entry)| Role(entry.role).is_primary());
    let v6 = maps.conntrack::<Ip6>()?.into_iter().filter(|(_, entry)| Role(entry.role).is_primary());
    Ok((opened, v4.count() + v6.count()))
}

fn all_go(cluster: &Cluster, worker: &Worker, wanted: &Way) -> Result<()> {
    SERVICE.iter().try_for_each(|(proto, to)| {
        let way = way(cluster, worker, *proto, to)?;
        ensure!(way == *wanted, "{proto} {to}: {way:?}");
        Ok(())
    })
}

#[test]
fn a_pod_that_opts_out_takes_the_packet_path() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    let (worker, _cgroup) = pod_worker(&cluster)?;
    let mut objects = manifests::two_nodes()?;
    all_go(&cluster, &worker, &Way::Socket)?;

    objects.push(pod(json!({"shunt.dev/socket-lb": "disabled"})));
    cluster.nodes[0].agent.write(&objects)?;
    cluster.nodes[0].agent.wait_for(SAID, |line| line.message() == SAID)?;
    all_go(&cluster, &worker, &Way::Packet)?;
    all_go(&cluster, &cluster.nodes[0].worker, &Way::Socket).context("other pods")?;

    // The choice outlives the agent.
    cluster.nodes[0].agent.stop()?;
    all_go(&cluster, &worker, &Way::Packet)?;
    let node = &mut cluster.nodes[0];
    node.agent.start(&node.host.netns)?;
    node.agent.wait_in_sync()?;
    all_go(&cluster, &worker, &Way::Packet)?;

    objects.pop();
    cluster.nodes[0].agent.write(&objects)?;
    soon(|| all_go(&cluster, &worker, &Way::Socket))
}

#[test]
fn a_namespace_opts_out_for_pods_that_come_later() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    let mut objects = manifests::two_nodes()?;
    objects.push(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "mesh", "annotations": {"shunt.dev/socket-lb": "disabled"}},
    }));
    objects.push(pod(json!({})));
    cluster.nodes[0].agent.write(&objects)?;
    cluster.nodes[0].agent.wait_in_sync()?;
    let (worker, _cgroup) = pod_worker(&cluster)?;
    cluster.nodes[0].agent.wait_for(SAID, |line| line.message() == SAID)?;
    all_go(&cluster, &worker, &Way::Packet)?;

    objects.pop();
    objects.push(pod(json!({"shunt.dev/socket-lb": "enabled"})));
    cluster.nodes[0].agent.write(&objects)?;
    soon(|| all_go(&cluster, &worker, &Way::Socket))
}

/// A thread with the name of a kernel worker stands for one: the kernel's own sockets are
/// not to be had without a file system on the network.
#[test]
fn kernel_workers_take_the_packet_path() -> Result<()> {
    let cluster = two_nodes(SocketLb::All)?;
    answer(&cluster, Pod(0, 1), LINE, SERVICE[0].1)?;
    let before = rows(&cluster)?;
    let address: SocketAddr = SERVICE[0].1.parse()?;
    let IpAddr::V4(ip) = address.ip() else { bail!("IPv4") };
    let script = format!("printf kworker/u8:1 > /proc/$$/comm; exec 3<> /dev/tcp/{ip}/{}", address.port());
    let mut command = Command::new("bash");
    command.args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
    command.cgroup(&cluster.nodes[0].agent.cgroup)?.netns(&cluster.nodes[0].pods[1].netns)?;
    ensure!(command.status()?.success(), "cannot connect");
    let after = rows(&cluster)?;
    assert_eq!(after, (before.0 + 1, before.1 + 1), "connections counted, and rows of conntrack");
    Ok(())
}

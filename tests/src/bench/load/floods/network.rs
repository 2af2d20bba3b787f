//! What a network needs for a flood: a place behind the client where the forged addresses are, and where
//! answers to them end in silence.

use std::{fs, net::Ipv4Addr, path::Path};

use anyhow::{Context as _, Result};

use crate::{
    bench::{
        contender::Contender,
        field::Field,
        proc::{counter, not_sent},
    },
    netns::Namespace,
};

/// Addresses for benchmarks (RFC 2544): nobody has them.
pub(super) const FORGED: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);

/// Routes answers to the client, which forgets them. Nobody answers with a reset, and since the client is a
/// router for these addresses, no node looks for them among its neighbours.
pub(super) fn prepare(field: &Field) -> Result<()> {
    let cluster = field.cluster();
    leave_wire_alone(cluster.far_end(0).0)?;
    let (first, length) = FORGED;
    cluster.client.netns.ip(&format!("route add blackhole {first}/{length}"))?;
    let client = cluster.client.v4;
    for (index, node) in cluster.nodes.iter().enumerate() {
        // As for the client's own addresses: without a proxy, answers go back by the first node.
        let is_direct = field.contender() == Contender::Direct;
        let router = if index > 0 && is_direct { cluster.nodes[0].host.v4 } else { client };
        node.host.netns.ip(&format!("route add {first}/{length} via {router}"))?;
        // A backend with more half-open connections than it keeps answers all the same.
        node.pods[0].netns.sysctl(&[("ipv4/tcp_syncookies", "1")])?;
    }
    Ok(())
}

/// The bridge stands for a wire: netfilter is not to look at what it carries, as it does on machines that
/// have the module.
fn leave_wire_alone(lan: &Namespace) -> Result<()> {
    let setting = "bridge/bridge-nf-call-iptables";
    let exists = lan.run(|| Ok(Path::new("/proc/sys/net").join(setting).exists()))?;
    if exists { lan.sysctl(&[(setting, "0")]) } else { Ok(()) }
}

/// What has become of packets so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// TCP segments that have arrived at the backends.
    pub(super) arrived: u64,
    /// Packets that were dropped at the links on the way, for the other end had no room for them.
    pub(super) no_room: u64,
}

impl Counted {
    pub(super) fn now(field: &Field) -> Result<Self> {
        let cluster = field.cluster();
        let pod = &cluster.nodes[1].pods[0].netns;
        let nodes = cluster.nodes.iter().map(|node| &node.host.netns);
        let links = [cluster.far_end(0).0, &cluster.client.netns, pod].into_iter().chain(nodes);
        let no_room = links.map(|netns| read(netns, "dev").map(|dev| not_sent(&dev))).sum::<Result<u64>>()?;
        let arrived = counter(&read(pod, "snmp")?, "Tcp", "InSegs").context("segments are not counted")?;
        Ok(Self { arrived, no_room })
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self { arrived: self.arrived - before.arrived, no_room: self.no_room - before.no_room }
    }
}

/// A file of `/proc/net`, in a namespace.
fn read(netns: &Namespace, name: &str) -> Result<String> {
    netns.run(|| {
        // Not of the process: only this thread is in the namespace.
        let path = format!("/proc/thread-self/net/{name}");
        fs::read_to_string(&path).with_context(|| format!("read {path}"))
    })
}

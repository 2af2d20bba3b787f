//! What a network needs for a flood: a place behind the client where the forged addresses are, and where
//! answers to them end in silence.

use std::{fs, net::Ipv4Addr, path::Path};

use anyhow::{Context as _, Result};

use crate::{
    bench::{contender::Contender, field::Field, proc::counter},
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

/// TCP segments that have arrived at the backends so far.
pub(super) fn arrived(field: &Field) -> Result<u64> {
    field.cluster().nodes[1].pods[0].netns.run(|| {
        // Not of the process: only this thread is in the namespace.
        let path = "/proc/thread-self/net/snmp";
        let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        counter(&text, "Tcp", "InSegs").with_context(|| format!("{path} does not count segments"))
    })
}

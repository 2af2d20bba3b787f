//! How to look inside while the demo is kept running.

use crate::{
    process::binary,
    topology::cluster::{Cluster, Host},
};
use anyhow::Result;

/// Prints commands that can be copied.
pub(super) fn explain(cluster: &Cluster) -> Result<()> {
    let shunt = binary("shunt")?;
    let shunt = shunt.display();
    println!("\nEverything keeps running until Ctrl-C. In another terminal, as root:\n");
    for node in &cluster.nodes {
        let pins = node.agent.pins();
        let bpffs = pins.display();
        println!("  # {} ({}, {})", node.host.name, node.host.v4, node.host.v6);
        println!("  {shunt} service list --bpffs {bpffs}");
        println!("  {shunt} conn list --bpffs {bpffs}");
        println!("  find {bpffs} -name 'frontends_v4' -exec bpftool map dump pinned {{}} \\;");
        println!("  {} ip -br address", enter(&node.host));
    }
    println!("  # services as clients see them");
    for pod in cluster.nodes.iter().flat_map(|node| &node.pods).skip(1).take(1) {
        println!("  {} curl -s http://10.96.0.10/", enter(pod));
        println!("  {} curl -s 'http://[fd00:96::10]/'", enter(pod));
    }
    println!("  {} curl -s http://192.168.50.11:30080/", enter(&cluster.client));
    println!("  # the manifests; the agents follow changes of the file");
    for node in &cluster.nodes {
        println!("  {}/objects.yaml", node.agent.manifests().display());
    }
    Ok(())
}

fn enter(host: &Host) -> String {
    format!("nsenter --net={}", host.netns.path().display())
}

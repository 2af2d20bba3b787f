//! Two nodes: on the first the proxy and a client in a pod, on the second the backends.

use super::{
    contender::{Contender, Running},
    objects::{Asked, NAMESPACE, PORT},
    prober::{Await, Prober, now},
};
use crate::{
    bench::populate::objects,
    control_plane::{SharedControlPlane, Shown},
    netns::Namespace,
    topology::cluster::{Cluster, Host},
};
use anyhow::{Context as _, Result};
use serde_json::json;
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Netfilter forgets unanswered requests after so many seconds, or they would be kept from the
/// service that is there at last.
const FORGETS: &str = "3";
/// An endpoint must have an address; until there are pods, the target's is nobody's.
const NOBODY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// A proxy at rest uses less of a core than this, over as long.
const REST: f64 = 0.03;
const LOOK: Duration = Duration::from_secs(1);

/// One contender's, from nothing.
pub(super) struct World {
    // Processes go before the namespaces they live in.
    pub(super) running: Option<Running>,
    pub(super) prober: Prober,
    pub(super) shown: Shown,
    pub(super) cluster: Cluster,
    pub(super) control_plane: Arc<SharedControlPlane>,
    pub(super) contender: Contender,
}

impl World {
    /// Everything but the proxy. The target, which [`prepare`] has made, is the first backend's.
    pub(super) fn build(control_plane: &Arc<SharedControlPlane>, contender: Contender) -> Result<Self> {
        // Sockets are left alone, or nothing would show what becomes of packets.
        let mut cluster = Cluster::build(2, &json!({"socketLB": "off"}))?;
        cluster.nodes[0].host.netns.sysctl(&[("netfilter/nf_conntrack_udp_timeout", FORGETS)])?;
        cluster.nodes[1].add_pod()?;
        let mut prober = Prober::start(&cluster.nodes[0].agent.cgroup)?;
        for pod in backends(&cluster) {
            prober.serve(&pod.netns, &pod.name, (Ipv4Addr::UNSPECIFIED, PORT).into())?;
        }
        let slice = Asked::target().slice(backends(&cluster)[0].v4);
        control_plane.with_client(async |client| objects::patch_endpoints(&client, &slice).await)?;
        let shown = control_plane.show_in(&cluster.nodes[0].host.netns, true)?;
        let control_plane = Arc::clone(control_plane);
        Ok(Self { running: None, prober, shown, cluster, control_plane, contender })
    }

    /// The node that the proxy is on.
    pub(super) fn node(&self) -> &Namespace {
        &self.cluster.nodes[0].host.netns
    }

    /// The client.
    pub(super) fn client(&self) -> &Namespace {
        &self.cluster.nodes[0].pods[1].netns
    }

    /// The pods that answer.
    pub(super) fn backends(&self) -> [&Host; 2] {
        backends(&self.cluster)
    }

    /// Starts the proxy; says when, by the clock of all processes.
    pub(super) fn start(&mut self) -> Result<Duration> {
        let (begin, kubeconfig) = (now()?, self.shown.kubeconfig());
        self.running = Some(self.contender.start(&mut self.cluster.nodes[0], &kubeconfig)?);
        Ok(begin)
    }

    /// Ends it.
    pub(super) fn stop(&mut self) -> Result<()> {
        let running = self.running.take().context("no proxy runs")?;
        running.stop(&mut self.cluster.nodes[0])
    }

    /// The proxy, which runs.
    pub(super) fn running(&self) -> Result<&Running> {
        self.running.as_ref().context("no proxy runs")
    }

    /// What the proxy has written when it says so, and after which time since `begin`.
    pub(super) fn in_sync(&self, begin: Duration, limit: Duration) -> Result<Option<(f64, u64)>> {
        let rows = self.running()?.in_sync(&self.cluster.nodes[0], limit);
        let seconds = now()?.saturating_sub(begin).as_secs_f64();
        Ok(rows.map(|rows| (seconds, rows)))
    }

    /// The end of the proxy's log.
    pub(super) fn last_words(&self) -> String {
        self.running.as_ref().map(|running| running.last_words(&self.cluster.nodes[0])).unwrap_or_default()
    }

    /// Begins to ask a service until it answers.
    pub(super) fn ask(&mut self, to: SocketAddr, server: Option<&str>, limit: Duration) -> Result<()> {
        let netns: PathBuf = self.client().path();
        let server = server.map(String::from);
        self.prober.begin(Await { netns, to, server, limit_ms: limit.as_millis() as u64 })
    }

    /// Waits until the proxy has nothing more to do, or until the limit.
    pub(super) fn rest(&self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        let mut before = self.running()?.usage.cpu()?;
        while Instant::now() + LOOK < deadline {
            thread::sleep(LOOK);
            let used = self.running()?.usage.cpu()?;
            if (used - before).as_secs_f64() < REST * LOOK.as_secs_f64() {
                break;
            }
            before = used;
        }
        Ok(())
    }
}

impl Drop for World {
    /// The proxy before its cgroup.
    fn drop(&mut self) {
        if self.running.is_some()
            && let Err(error) = self.stop()
        {
            eprintln!("the proxy was not stopped in order: {error:#}");
        }
    }
}

/// Makes the target, once for all contenders.
pub(super) fn prepare(control_plane: &SharedControlPlane) -> Result<()> {
    let target = Asked::target();
    control_plane.with_client(async |client| {
        objects::create_namespace(&client, NAMESPACE).await?;
        objects::create(&client, &target.service()).await?;
        objects::create(&client, &target.slice(NOBODY)).await
    })
}

/// Both on the second node: a way that every packet has to go.
fn backends(cluster: &Cluster) -> [&Host; 2] {
    let pods = &cluster.nodes[1].pods;
    [&pods[1], &pods[2]]
}

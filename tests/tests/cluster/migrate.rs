//! From a real kube-proxy to shunt and back, under traffic that counts: nothing is lost, and
//! no open connection is reset.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::{
    agent::{Agent, SocketLb},
    control_plane::{Options, SharedControlPlane, Shown},
    kube_proxy::{self, KubeProxy, Mode},
    late,
    load::{Kind, Load, Path, Report},
    manifests,
    process::{Process, Spawn as _, binary},
    skip::skipped,
    topology::cluster::{
        Cluster, Node,
        Origin::{self, Client, Pod},
    },
};

/// A backend of each family; kube-proxy writes the rules of a family all at once.
const BACKENDS: [&str; 2] = ["10.244.2.10", "fd00:244:2::10"];
/// Netfilter forgets TCP connections that are over after so many seconds.
const FORGETS: &str = "3";
/// It forgets datagrams that are silent after so many: no fewer, for the programs leave a flow of
/// datagrams to it for 28 seconds, and a client may take the same port again.
const FORGETS_UDP: &str = "30";

/// A service with a backend on each node: from a pod and from outside, where it is masqueraded,
/// and from the host, which goes by other hooks.
fn paths() -> Result<Vec<Path>> {
    Ok(vec![
        Path::tcp(Pod(0, 1), "10.96.0.10:90")?,
        Path::udp(Pod(0, 1), "10.96.0.10:53")?,
        Path::tcp(Pod(0, 1), "[fd00:96::10]:90")?,
        Path::udp(Pod(0, 1), "[fd00:96::10]:53")?,
        Path::tcp(Origin::Node(0), "10.96.0.10:90")?,
        Path::tcp(Client, "192.168.50.11:30090")?,
        Path::udp(Client, "192.168.50.11:30053")?,
        Path::tcp(Client, "[fd00:50::11]:30090")?,
    ])
}

/// The first of two nodes, served by a real kube-proxy.
struct World {
    // Processes go before the namespaces they live in.
    kube_proxy: Option<KubeProxy>,
    mode: Mode,
    kubeconfig: PathBuf,
    _shown: Shown,
    cluster: Cluster,
    _control_plane: Arc<SharedControlPlane>,
}

impl World {
    fn build(mode: Mode) -> Result<Self> {
        let options = Options { service_ranges: "10.96.0.0/16,fd00:96::/112".into(), ..Options::default() };
        let control_plane = Arc::new(SharedControlPlane::start_with(options)?);
        control_plane.write(&manifests::two_nodes()?)?;
        let mut shunt = Agent::small(SocketLb::Off);
        // Too small: they are made larger before the first row is written.
        shunt["maps"]["frontends"] = 16.into();
        let mut cluster = Cluster::build(2, &shunt)?;
        let node = &mut cluster.nodes[0];
        node.host.netns.sysctl(&[
            ("netfilter/nf_conntrack_udp_timeout", FORGETS_UDP),
            ("netfilter/nf_conntrack_udp_timeout_stream", FORGETS_UDP),
            ("netfilter/nf_conntrack_tcp_timeout_time_wait", FORGETS),
            ("netfilter/nf_conntrack_tcp_timeout_close", FORGETS),
        ])?;
        let shown = control_plane.show_in(&node.host.netns, true)?;
        let kubeconfig = shown.kubeconfig();
        let mut world = Self {
            kube_proxy: None,
            mode,
            kubeconfig,
            _shown: shown,
            cluster,
            _control_plane: control_plane,
        };
        world.start_kube_proxy()?;
        Ok(world)
    }

    fn node(&self) -> &Node {
        &self.cluster.nodes[0]
    }

    /// Until its rules are there.
    fn start_kube_proxy(&mut self) -> Result<()> {
        let node = &self.cluster.nodes[0].host;
        let started = KubeProxy::start(&node.netns, &node.name, self.mode, &self.kubeconfig)?;
        let kube_proxy = self.kube_proxy.insert(started);
        let words = || format!("kube-proxy:\n{}", kube_proxy.last_words());
        late::soon(|| {
            kube_proxy.ensure_alive()?;
            let rules = ruleset(&self.cluster.nodes[0])?;
            ensure!(BACKENDS.iter().all(|backend| rules.contains(backend)), late!("no rules"));
            Ok(())
        })
        .with_context(words)
    }

    fn start_agent(&mut self) -> Result<()> {
        let node = &mut self.cluster.nodes[0];
        node.agent.start_with_api_server(&node.host.netns, &self.kubeconfig)?;
        node.agent.wait_in_sync()
    }

    fn shunt(&self, arguments: &[&str]) -> Result<String> {
        self.node().agent.shunt(&self.node().host.netns, arguments)
    }

    /// The plan of `shunt migrate`, which says by its exit status whether something is in the way.
    fn plan(&self, arguments: &[&str]) -> Result<Value> {
        let mut all = vec!["-c", "\"$0\" migrate -o json \"$@\" || true"];
        let (program, pins) = (binary("shunt")?, self.node().agent.pins());
        let (program, pins) = (program.to_string_lossy(), pins.to_string_lossy());
        all.extend([&*program, "--bpffs", &*pins]);
        all.extend(arguments);
        let text = self.node().host.netns.output("sh", &all)?;
        serde_json::from_str(&text).with_context(|| text)
    }

    /// Connections that the programs of the node translate.
    fn connections(&self) -> Result<usize> {
        let rows: Vec<Value> = serde_json::from_str(&self.shunt(&["conn", "list", "-o", "json"])?)?;
        Ok(rows.len())
    }
}

fn ruleset(node: &Node) -> Result<String> {
    node.host.netns.output("nft", &["list", "ruleset"])
}

/// Every kind of traffic went on and nothing was lost.
fn lossless(load: Load, what: &str) -> Result<Report> {
    let report = load.finish()?;
    println!("{what}:\n{report}\n");
    report.ensure_lossless().with_context(|| what.to_owned())?;
    ensure!(report.of(Kind::Connections).ok > 50, "too little was tried:\n{report}");
    Ok(report)
}

fn there_and_back(mode: Mode) -> Result<()> {
    if let Some(reason) = kube_proxy::obstacle(mode) {
        skipped(&reason);
        return Ok(());
    }
    let mut world = World::build(mode)?;
    take_over(&mut world)?;
    give_back(&mut world)
}

fn take_over(world: &mut World) -> Result<()> {
    let mut load = Load::start(&world.cluster, &paths()?)?;
    let plan = world.plan(&[])?;
    assert_eq!(
        (&plan["mode"], &plan["obstacles"][1].is_string()),
        (&world.mode.name().into(), &true),
        "{plan}"
    );
    world.start_agent()?;
    load.checkpoint("the agent started beside kube-proxy")?;
    world.node().agent.wait_for("connections left to netfilter", |line| {
        line.message() == "left to netfilter until they end" && line.field("connections").as_u64() > Some(0)
    })?;
    let id = world.kube_proxy.as_ref().map(KubeProxy::id);
    assert_eq!(world.plan(&["--yes"])?["kubeProxyProcesses"][0].as_u64(), id.map(u64::from));
    world.kube_proxy = None;
    let before = ruleset(world.node())?;
    assert!(before.contains("10.244.2.10"), "kube-proxy leaves its rules: {before}");
    println!("{}", world.shunt(&["migrate", "--yes", "--wait=60s"])?);
    load.checkpoint("kube-proxy's rules removed")?;
    rules_are_gone(world)?;
    ensure!(world.connections()? > 0, "new connections are translated by the programs");
    load.checkpoint("some time later")?;
    lossless(load, &format!("taking over from kube-proxy in {} mode", world.mode.name()))?;
    // With the last of its connections netfilter is let go.
    world.node().agent.wait_for("the end of what was left to netfilter", |line| {
        line.message() == "no connection is left to netfilter any more"
    })?;
    ensure!(!ruleset(world.node())?.contains("table ip shunt"), "the keeper's table is left");
    Ok(())
}

/// Those of the kubelet, which kube-proxy makes as well, are not kube-proxy's.
fn rules_are_gone(world: &World) -> Result<()> {
    let rules = ruleset(world.node())?;
    for trace in ["kube-proxy", "KUBE-SERVICES", "KUBE-SVC", "KUBE-SEP", "KUBE-MARK-MASQ", "10.244."] {
        ensure!(!rules.contains(trace), "{trace} is left:\n{rules}");
    }
    let kubelets = world.mode == Mode::Iptables;
    ensure!(rules.contains("KUBE-FIREWALL") == kubelets, "the kubelet's chains stay:\n{rules}");
    ensure!(rules.contains("table ip shunt"), "netfilter is kept at work:\n{rules}");
    let plan = world.plan(&[])?;
    assert!(plan["rules"].as_array().is_some_and(Vec::is_empty), "{plan}");
    Ok(())
}

fn give_back(world: &mut World) -> Result<()> {
    let mut load = Load::start(&world.cluster, &paths()?)?;
    assert_eq!(world.plan(&["--back"])?["obstacles"].as_array().map(Vec::len), Some(2));
    let drain = migrate_back(world)?;
    late::soon(|| {
        ensure!(ruleset(world.node())?.contains("table ip shunt"), late!("netfilter is not prepared"));
        Ok(())
    })?;
    load.checkpoint("netfilter knows the connections of the host")?;
    world.start_kube_proxy()?;
    load.checkpoint("kube-proxy started beside the agent")?;
    world.cluster.nodes[0].agent.stop()?;
    load.checkpoint("the agent stopped")?;
    // New connections are kube-proxy's now; the streams are not.
    late::soon(|| {
        let frontends = world.plan(&["--back"])?["frontends"].as_u64();
        ensure!(frontends == Some(0), late!("{frontends:?} frontends are left"));
        Ok(())
    })?;
    load.checkpoint("new connections are kube-proxy's")?;
    ensure!(world.connections()? > 0, "the streams are translated by the programs");
    ensure!(drain.child().try_wait()?.is_none(), "it waits for the streams");
    load.checkpoint("some time later")?;
    lossless(load, &format!("giving back to kube-proxy in {} mode", world.mode.name()))?;
    let status = drain.wait(late::SOON)?;
    ensure!(status.success(), "shunt migrate --back ended with {status}");
    ensure!(!world.node().agent.pins().exists(), "pins are left");
    let load = Load::start(&world.cluster, &paths()?)?;
    load.settle(5)?;
    load.finish()?.ensure_lossless()
}

fn migrate_back(world: &World) -> Result<Process> {
    let mut command = std::process::Command::new(binary("shunt")?);
    command.args(["migrate", "--back", "--yes", "--wait", "--bpffs"]).arg(world.node().agent.pins());
    command.netns(&world.node().host.netns)?.spawn_owned()
}

#[test]
fn from_kube_proxy_in_nftables_mode_and_back() -> Result<()> {
    there_and_back(Mode::Nftables)
}

#[test]
fn from_kube_proxy_in_iptables_mode_and_back() -> Result<()> {
    there_and_back(Mode::Iptables)
}

//! What socket LB decides when a program connects: which client it takes the program for, and what stays
//! behind of its sockets.

use crate::{
    reload::kube_proxy,
    stats,
    world::{LINE, Open, answer, configured, soon, two_nodes},
};
use anyhow::{Context, Result, bail, ensure};
use proxy_common::{Ip4, Ip6};
use proxy_userspace::kernel::{KernelAddr, PinnedMaps, Pins};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    thread,
    time::Duration,
};
use tests::{
    agent::{Agent, SocketLb},
    late, manifests,
    probe::{Bulk, Calls, Dial, Outcome, Proto, Serve},
    topology::cluster::{
        Cluster, Node,
        Origin::{self, Node as Host, Pod},
    },
};

/// The service `web`, by all of its ports.
const WEB: [(Proto, &str); 6] = [
    (Proto::Http, "10.96.0.10:80"),
    (Proto::Http, "[fd00:96::10]:80"),
    (LINE, "10.96.0.10:90"),
    (LINE, "[fd00:96::10]:90"),
    (Proto::Udp, "10.96.0.10:53"),
    (Proto::Udp, "[fd00:96::10]:53"),
];
pub(crate) const DATAGRAMS: [&str; 2] = ["10.96.0.10:53", "[fd00:96::10]:53"];

pub(crate) fn maps(node: &Node) -> Result<PinnedMaps> {
    Ok(PinnedMaps::open(Pins::new(node.agent.pins()))?)
}

/// Rows of connections, sockets and clients.
fn rows<A: KernelAddr>(maps: &PinnedMaps) -> Result<[usize; 4]> {
    Ok([
        maps.conntrack::<A>()?.len(),
        maps.socket_pairs::<A>()?.len(),
        maps.affinity::<A>()?.len(),
        maps.netns_addresses::<A>()?.len(),
    ])
}

/// Connections so far, by backend: its key in `backends`.
fn opened(node: &Node, to: SocketAddr) -> Result<BTreeMap<u32, u64>> {
    let maps = maps(node)?;
    let rows = if to.is_ipv4() { maps.opened::<Ip4>()? } else { maps.opened::<Ip6>()? };
    let mut sums = BTreeMap::new();
    rows.into_iter().for_each(|(key, count)| *sums.entry(key.backend).or_default() += count);
    Ok(sums)
}

/// Connects sockets in the second pod of the first node; how many went to which backend.
pub(crate) fn call(
    cluster: &Cluster,
    to: SocketAddr,
    from: Vec<SocketAddr>,
    at_once: usize,
) -> Result<BTreeMap<u32, u64>> {
    let (host, worker) = cluster.host(Pod(0, 1));
    let before = opened(&cluster.nodes[0], to)?;
    worker.call(Calls { netns: host.netns.path(), to, from, at_once })?;
    let mut after = opened(&cluster.nodes[0], to)?;
    before.iter().for_each(|(backend, count)| *after.entry(*backend).or_default() -= count);
    after.retain(|_, count| *count != 0);
    Ok(after)
}

/// The client called `number`, of any port.
pub(crate) fn client(to: SocketAddr, number: u16) -> SocketAddr {
    let [high, low] = number.to_be_bytes();
    let ip = match to {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::new(10, 244, 100 + high, low)),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::new(0xfd00, 0x244, 1, 7, 0, 0, 0, number)),
    };
    SocketAddr::new(ip, 0)
}

/// Gives the service `web` other fields and more endpoints, at which nobody answers.
pub(crate) fn change_web(cluster: &mut Cluster, endpoints: u8, change: impl Fn(&mut Value)) -> Result<()> {
    let mut objects = manifests::two_nodes()?;
    change(manifests::find(&mut objects, "Service", "web")?);
    for (slice, prefix) in [("web-4", "10.244.2."), ("web-6", "fd00:244:2::")] {
        let slice = manifests::find(&mut objects, "EndpointSlice", slice)?;
        let more = (0..endpoints).map(|i| {
            json!({"addresses": [format!("{prefix}{}", 20 + i)], "nodeName": "node2", "zone": "zone-b",
                   "conditions": {"ready": true}})
        });
        slice["endpoints"].as_array_mut().context("endpoints")?.extend(more);
    }
    for node in &mut cluster.nodes {
        node.agent.write(&objects)?;
        node.agent.wait_in_sync()?;
    }
    Ok(())
}

pub(crate) fn sticky(service: &mut Value, seconds: u32) {
    service["spec"]["sessionAffinity"] = "ClientIP".into();
    service["spec"]["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
}

#[test]
fn short_connections_leave_nothing_behind() -> Result<()> {
    let cluster = two_nodes(SocketLb::All)?;
    let maps = maps(&cluster.nodes[0])?;
    let all = || Ok::<_, anyhow::Error>((rows::<Ip4>(&maps)?, rows::<Ip6>(&maps)?));
    let before = all()?;
    for (proto, to) in WEB {
        for from in [Pod(0, 1), Host(0)] {
            let outcomes = cluster.dial(from, proto, to.parse()?, 100)?;
            for outcome in outcomes {
                assert_eq!(outcome.answer(to)?.peer, to.parse()?);
            }
        }
    }
    // A socket goes a grace period after it was closed.
    soon(|| {
        let after = all()?;
        let tables = "conntrack, UDP sockets, affinity, netns_addresses of both families";
        ensure!(after == before, late!("{tables}: {before:?} before, {after:?} now"));
        Ok(())
    })
}

#[test]
fn open_sockets_keep_the_services_address_when_maps_grow() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    let to = ["10.96.0.20:90", "[fd00:96::20]:90"];
    for to in to {
        Open::new(&cluster, Pod(0, 1), to)?;
    }
    let current = |cluster: &Cluster| fs::read_link(cluster.nodes[0].agent.pins().join("current"));
    let before = current(&cluster)?;
    let mut larger = Agent::small(SocketLb::All);
    larger["maps"]["conntrack"] = 131_072.into();
    let Node { agent, host, .. } = &mut cluster.nodes[0];
    agent.stop()?;
    agent.configure(&kube_proxy(json!({})), &larger)?;
    agent.start(&host.netns)?;
    agent.wait_in_sync()?;
    assert_ne!(current(&cluster)?, before, "the maps are the same");
    for to in to {
        let answer = Open::again(&cluster, Pod(0, 1), to).outlives(Bulk { up: 1000, down: 1000 })?;
        assert_eq!(answer.peer, to.parse()?, "{answer}");
    }
    Ok(())
}

#[test]
fn a_pod_is_one_client_whether_its_sockets_are_bound_or_not() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    change_web(&mut cluster, 0, |web| sticky(web, 600))?;
    for (from, bound_first) in [(Pod(0, 1), false), (Pod(1, 1), true)] {
        for (proto, to) in WEB {
            let first = go(&cluster, from, proto, to, bound_first)?;
            for bound in [!bound_first, bound_first] {
                assert_eq!(go(&cluster, from, proto, to, bound)?, first, "{from:?} → {to}, bound: {bound}");
            }
        }
    }
    let listed = cluster.nodes[0].agent.shunt(&cluster.nodes[0].host.netns, &["affinity", "list"])?;
    let (host, _) = cluster.host(Pod(0, 1));
    ensure!(listed.contains(&host.v4.to_string()) && listed.contains(&host.v6.to_string()), "{listed}");
    ensure!(!listed.contains("netns:"), "{listed}");
    Ok(())
}

/// Who answers.
fn go(cluster: &Cluster, from: Origin, proto: Proto, to: &str, bound: bool) -> Result<String> {
    let (host, worker) = cluster.host(from);
    let to: SocketAddr = to.parse()?;
    let own = if to.is_ipv4() { IpAddr::from(host.v4) } else { host.v6.into() };
    let dial = Dial { from: bound.then_some(own), ..Dial::new(&host.netns, proto, to) };
    Ok(worker.dial(&dial)?.remove(0).answer(to)?.server)
}

#[test]
fn calls_of_a_client_at_the_same_time_go_to_one_backend() -> Result<()> {
    const CLIENTS: u16 = 3000;
    const AT_ONCE: usize = 2;
    let timeout = Duration::from_secs(1);
    let mut cluster = two_nodes(SocketLb::All)?;
    change_web(&mut cluster, 6, |web| sticky(web, 1))?;
    for to in DATAGRAMS {
        let to: SocketAddr = to.parse()?;
        let clients: Vec<_> = (0..CLIENTS).map(|number| client(to, number)).collect();
        for what in ["new clients", "clients whose time is over"] {
            let by_backend = call(&cluster, to, clients.clone(), AT_ONCE)?;
            assert_eq!(by_backend.len(), 8, "{to}: {by_backend:?}");
            let apart = by_backend.values().any(|count| count % AT_ONCE as u64 != 0);
            ensure!(!apart, "{to}, {what}: {by_backend:?}");
            // The time of the last client is over.
            thread::sleep(timeout + Duration::from_millis(100));
        }
    }
    Ok(())
}

#[test]
fn maglev_chooses_for_a_socket_as_for_its_packets() -> Result<()> {
    let mut roomy = Agent::small(SocketLb::All);
    // Lookup tables do not make the maps grow meanwhile, which would move the counters.
    roomy["maps"]["slots"] = 131_072.into();
    let mut cluster = configured(&roomy)?;
    change_web(&mut cluster, 6, |web| {
        web["metadata"]["annotations"] = json!({"shunt.dev/algorithm": "maglev"})
    })?;
    let node = &cluster.nodes[0];
    for to in DATAGRAMS {
        let (host, _) = cluster.host(Pod(0, 1));
        let to: SocketAddr = to.parse()?;
        let own = if to.is_ipv4() { IpAddr::from(host.v4) } else { host.v6.into() };
        for port in 40_000..40_006 {
            let by_backend = call(&cluster, to, vec![SocketAddr::new(own, port)], 1)?;
            let ask = ["explain", &own.to_string(), &format!("{to}/UDP"), "--sport", &port.to_string()];
            let told = node.agent.shunt(&node.host.netns, &[&ask[..], &["-o", "json"]].concat())?;
            let told: Value = serde_json::from_str(&told)?;
            let candidates = told["candidates"].as_array().context("candidates")?;
            let chosen = candidates
                .iter()
                .find(|candidate| candidate["chosen"] == true)
                .with_context(|| format!("no choice in {told:#}"))?;
            let chosen = chosen["backendId"].as_u64().context("an id")?;
            ensure!(
                by_backend.keys().map(|id| u64::from(*id)).eq([chosen]),
                "{port}: {by_backend:?}, {told:#}"
            );
        }
    }
    Ok(())
}

#[test]
fn weights_count_for_sockets() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    change_web(&mut cluster, 0, |web| {
        web["metadata"]["annotations"] = json!({"shunt.dev/weights": "node:node1=3,node:node2=1"});
    })?;
    for to in DATAGRAMS {
        let to: SocketAddr = to.parse()?;
        let unbound = SocketAddr::new(
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() },
            0,
        );
        let by_backend = call(&cluster, to, vec![unbound; 1000], 1)?;
        let mut counts: Vec<_> = by_backend.values().copied().collect();
        counts.sort_unstable();
        // A quarter and three quarters; six standard deviations are 82.
        ensure!(
            counts.len() == 2 && counts[0].abs_diff(250) < 82 && counts.iter().sum::<u64>() == 1000,
            "{to}: {counts:?}"
        );
    }
    Ok(())
}

#[test]
fn the_host_is_refused_what_a_service_on_its_own_address_denies_it() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    let own = cluster.nodes[0].host.v4;
    let to = SocketAddr::new(own.into(), 80);
    // What answers where no service does.
    let (host, worker) = cluster.host(Host(0));
    worker.serve(Serve { netns: host.netns.path(), name: "host".into(), sockets: vec![(LINE, to)] })?;
    assert_eq!(soon(|| answer(&cluster, Host(0), LINE, &to.to_string()))?.server, "host");
    let mut objects = manifests::two_nodes()?;
    let vip = manifests::find(&mut objects, "Service", "vip")?;
    vip["spec"]["loadBalancerSourceRanges"] = json!(["203.0.113.0/24"]);
    vip["status"]["loadBalancer"]["ingress"] = json!([{"ip": own, "ipMode": "VIP"}]);
    cluster.nodes[0].agent.write(&objects)?;
    cluster.nodes[0].agent.wait_in_sync()?;
    let (host, worker) = cluster.host(Host(0));
    match worker.dial(&Dial::new(&host.netns, LINE, to))?.remove(0) {
        Outcome::Refused => {}
        other => bail!("{to}: {other}"),
    }
    let drops = stats::shunt(&cluster.nodes[0], "drop list --by service -o json")?;
    ensure!(drops.contains("demo/vip"), "{drops}");
    Ok(())
}

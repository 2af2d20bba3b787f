//! Maps begin small and grow with what they hold.

use crate::{
    calls::{DATAGRAMS, call, change_web, client, maps, sticky},
    metrics::gauge,
    world::{LINE, answer, configured, soon},
};
use anyhow::{Context, Result, ensure};
use aya::maps::loaded_maps;
use proxy_common::{Ip4, Ip6};
use proxy_userspace::kernel::KernelAddr;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    net::{IpAddr, SocketAddr},
};
use tests::{
    agent::{Agent, SocketLb},
    late, manifests,
    topology::cluster::{Cluster, Node, Origin::Pod},
};

const MIB: u64 = 1 << 20;

/// The most that the maps of an agent take with ten Services and the sizes they begin with.
const MOST_AT_REST: u64 = 32 * MIB;

/// Objects of `tests/manifests/two-nodes.yaml`, and Services of two ports until there are `count`.
fn services(count: usize) -> Result<Vec<Value>> {
    let mut objects = manifests::two_nodes()?;
    let present = objects.iter().filter(|object| object["kind"] == "Service").count();
    objects.extend(manifests::fillers(present..count));
    Ok(objects)
}

/// One node whose agent serves so many Services.
fn one_node(shunt: &Value, count: usize) -> Result<Cluster> {
    let mut cluster = Cluster::build(1, shunt)?;
    cluster.start(&services(count)?)?;
    Ok(cluster)
}

/// Bytes that the kernel has set aside for each map that a process holds, by the map's id.
fn memory(process: u32) -> Result<BTreeMap<u32, u64>> {
    let field = |text: &str, name: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    };
    let mut maps = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{process}/fdinfo"))? {
        // A descriptor may be closed meanwhile.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        if let (Some(id), Some(bytes)) = (field(&text, "map_id:"), field(&text, "memlock:")) {
            maps.insert(u32::try_from(id)?, bytes);
        }
    }
    Ok(maps)
}

#[test]
fn maps_take_little_memory_at_rest() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::All);
    shunt.as_object_mut().context("a configuration")?.remove("maps");
    let cluster = one_node(&shunt, 10)?;
    let memory = memory(cluster.nodes[0].agent.process_id()?)?;
    let names: BTreeMap<_, _> = loaded_maps()
        .filter_map(|info| info.ok().map(|info| (info.id(), info.name_as_str().unwrap_or("?").to_owned())))
        .collect();
    let mut rows: Vec<_> = memory.iter().map(|(id, bytes)| (bytes, names.get(id))).collect();
    rows.sort_unstable_by(|a, b| b.cmp(a));
    let mut table = String::new();
    for (bytes, name) in rows {
        writeln!(table, "{bytes:>12} {}", name.map_or("?", String::as_str))?;
    }
    println!("{table}");
    let sum: u64 = memory.values().sum();
    ensure!(memory.len() > 40, "these are not all maps:\n{table}");
    ensure!(sum <= MOST_AT_REST, "{sum} bytes, {} MiB in all:\n{table}", sum.div_ceil(MIB));
    Ok(())
}

#[test]
fn what_exists_at_the_start_finds_room_at_once() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::All);
    shunt["maps"]["frontends"] = 64.into();
    let cluster = one_node(&shunt, 120)?;
    let agent = &cluster.nodes[0].agent;
    let lines = agent.lines();
    let count = |text: &str| lines.iter().filter(|line| line.message().starts_with(text)).count();
    assert_eq!(count("there is more than the maps have room for"), 1);
    // Nothing was in service before.
    assert_eq!(count("attaching behind the programs") + count("maps are filling up"), 0);
    let mut names: Vec<_> =
        fs::read_dir(agent.pins())?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    names.sort();
    let current = fs::read_link(agent.pins().join("current"))?;
    ensure!(names == ["current".into(), current.into_os_string()], "left over: {names:?}");
    for to in ["10.96.0.20:90", "[fd00:96::20]:90"] {
        answer(&cluster, Pod(0, 1), LINE, to)?;
    }
    Ok(())
}

#[test]
fn maps_grow_for_a_service_that_may_not_have_so_much_of_them() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["maps"]["frontends"] = 128.into();
    let mut cluster = Cluster::build(1, &shunt)?;
    let mut objects = manifests::two_nodes()?;
    cluster.start(&objects)?;
    let ports: Vec<_> = (1..=80).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    objects.push(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "demo", "name": "large"},
        "spec": {"clusterIP": "10.96.0.99", "ports": ports},
    }));
    let node = &mut cluster.nodes[0];
    node.agent.write(&objects)?;
    node.agent
        .wait_for("that it has no room", |line| line.message().starts_with("no room for what is wanted"))?;
    node.agent.wait_for("that it has room", |line| {
        line.message() == "the Service has the room it needs, or is gone"
    })?;
    soon(|| {
        let room = capacity(node, "frontends", "IPv4")?;
        ensure!(room == 256, late!("room for {room}: twice as much is enough"));
        Ok(())
    })?;
    let listed = node.agent.shunt(&node.host.netns, &["service", "list", "--address", "10.96.0.99"])?;
    ensure!(listed.lines().filter(|line| line.contains("demo/large")).count() == 80, "{listed}");
    Ok(())
}

/// Rows that there is room for in a map of a family.
fn capacity(node: &Node, map: &str, family: &str) -> Result<usize> {
    let labels = [("map", map), ("ip_family", family)];
    gauge(node, "shunt_map_capacity", &labels).map(|rows| rows as usize)
}

/// The backend of each client that has been to `to`.
fn clients(node: &Node, to: SocketAddr) -> Result<BTreeMap<IpAddr, u32>> {
    fn of<A: KernelAddr + Into<IpAddr>>(node: &Node) -> Result<BTreeMap<IpAddr, u32>> {
        let rows = maps(node)?.affinity::<A>()?;
        Ok(rows.into_iter().map(|(key, row)| (key.client.into(), row.backend)).collect())
    }
    if to.is_ipv4() { of::<Ip4>(node) } else { of::<Ip6>(node) }
}

#[test]
fn clients_stick_while_the_map_that_remembers_them_grows() -> Result<()> {
    let mut shunt = Agent::small(SocketLb::All);
    // As small as it may be on this machine.
    shunt["maps"]["affinity"] = 64.into();
    let mut cluster = configured(&shunt)?;
    change_web(&mut cluster, 6, |web| sticky(web, 600))?;
    for to in DATAGRAMS {
        let to: SocketAddr = to.parse()?;
        let family = if to.is_ipv4() { "IPv4" } else { "IPv6" };
        let before = soon(|| capacity(&cluster.nodes[0], "affinity", family))?;
        // Just enough for the map to count as full, and for the kernel not to evict any.
        let number = u16::try_from(before * 81 / 100)?;
        let callers: Vec<_> = (0..number).map(|number| client(to, number)).collect();
        call(&cluster, to, callers.clone(), 1)?;
        let known = clients(&cluster.nodes[0], to)?;
        ensure!(known.len() == callers.len(), "{} of {} clients are known", known.len(), callers.len());
        soon(|| {
            let now = capacity(&cluster.nodes[0], "affinity", family)?;
            ensure!(now == 2 * before, late!("room for {now} clients, {before} before"));
            Ok(())
        })?;
        call(&cluster, to, callers, 1)?;
        ensure!(clients(&cluster.nodes[0], to)? == known, "{to}: a client was sent elsewhere");
    }
    Ok(())
}

//! The program in the drivers' hook: on links that behave as wires, and on those that do not.

use std::time::Duration;

use crate::world::{LINE, Open, answer, soon};
use anyhow::{Context, Result, ensure};
use aya::maps::{Array, Map, MapData};
use proxy_userspace::kernel::{PinnedMaps, Pins, XdpMode, XdpStatus};
use serde_json::Value;
use tests::{
    agent::{Agent, SocketLb},
    late,
    late::until,
    lossless::counts_losses,
    manifests,
    netns::Namespace,
    offload,
    probe::{Bulk, Dial, Exchange, Outcome, PATIENCE_MS, Proto},
    skip::skipped,
    topology::cluster::{Cluster, Node, Origin::Client},
};

/// Node 2 passes these on to node 1, by the link they came in by.
const THROUGH: [(Proto, &str); 4] = [
    (LINE, "192.168.50.12:30190"),
    (LINE, "[fd00:50::12]:30190"),
    (Proto::Udp, "192.168.50.12:30153"),
    (Proto::Udp, "[fd00:50::12]:30153"),
];

fn configuration(xdp: &str) -> Value {
    let mut shunt = Agent::small(SocketLb::Off);
    shunt["xdp"] = xdp.into();
    shunt
}

/// Two nodes on links that the driver's hook can forward by.
pub(crate) fn cluster(xdp: &str) -> Result<Cluster> {
    let mut cluster = Cluster::build(2, &configuration(xdp))?;
    cluster.wire()?;
    cluster.start(&manifests::two_nodes()?)?;
    Ok(cluster)
}

/// What became of the device called `interface`.
fn status(node: &Node, interface: &str) -> Result<XdpStatus> {
    let index = |name: &str| {
        node.host.netns.run(|| nix::net::if_::if_nametoindex(name).with_context(|| name.to_owned()))
    };
    let ifindex = index(interface)?;
    let statuses = PinnedMaps::open(Pins::new(node.agent.pins()))?.xdp_statuses(|_| String::new())?;
    let found = statuses.into_iter().find(|status| status.ifindex == ifindex);
    found.with_context(|| late!("nothing is told of {interface}"))
}

/// Waits until a device is as wanted, and returns why.
fn wait_for(node: &Node, interface: &str, mode: XdpMode) -> Result<String> {
    soon(|| {
        node.agent.ensure_alive()?;
        let status = status(node, interface)?;
        ensure!(status.mode == mode, late!("{status:?}"));
        Ok(status.reason)
    })
}

/// Packets that the stack of the node has forwarded since this rule set was loaded.
const FORWARDED: &str = "
table inet seen {
    counter forwarded {}
    chain forward { type filter hook forward priority 0; meta l4proto { tcp, udp } counter name forwarded; }
}
";

fn forwarded(node: &Namespace) -> Result<u64> {
    let text = node.output("nft", &["list", "counter", "inet", "seen", "forwarded"])?;
    let count = text.split_once("packets ").and_then(|(_, rest)| rest.split(' ').next());
    Ok(count.with_context(|| text.clone())?.parse()?)
}

fn all_get_through(cluster: &Cluster) -> Result<()> {
    for (proto, to) in THROUGH {
        assert_eq!(answer(cluster, Client, proto, to)?.server, "pod1-1");
    }
    Ok(())
}

#[test]
fn the_driver_forwards_what_only_passes() -> Result<()> {
    for (xdp, mode) in [("native", XdpMode::Native), ("off", XdpMode::None)] {
        let cluster = cluster(xdp)?;
        let node = &cluster.nodes[1];
        assert_eq!(wait_for(node, "eth0", mode)?, "");
        // The first packets may go up, for want of a neighbour's address.
        all_get_through(&cluster)?;
        node.host.netns.nft(FORWARDED)?;
        for _ in 0..5 {
            all_get_through(&cluster)?;
        }
        assert_eq!(forwarded(&node.host.netns)? == 0, mode == XdpMode::Native, "{xdp}");
    }
    Ok(())
}

/// The driver sends only to neighbours whose address is known; the stack finds it out.
#[test]
fn a_connection_changes_between_driver_and_stack() -> Result<()> {
    let cluster = cluster("native")?;
    let node = &cluster.nodes[1].host.netns;
    wait_for(&cluster.nodes[1], "eth0", XdpMode::Native)?;
    node.nft(FORWARDED)?;
    for (_, to) in THROUGH.iter().filter(|(proto, _)| *proto == LINE) {
        let connection = Open::new(&cluster, Client, to)?;
        let sent_by_the_stack = || -> Result<u64> {
            let before = forwarded(node)?;
            assert_eq!(connection.outlives(Bulk { up: 100_000, down: 100_000 })?.server, "pod1-1");
            Ok(forwarded(node)? - before)
        };
        let all_by_the_driver = || {
            let by_the_stack = sent_by_the_stack()?;
            ensure!(by_the_stack == 0, late!("{to}: {by_the_stack} by the stack"));
            Ok(())
        };
        soon(all_by_the_driver)?;
        // Only of its family: a late ACK of the other connection would take the stack.
        let family = if to.starts_with('[') { "-6" } else { "-4" };
        node.output("ip", &[family, "neighbour", "flush", "dev", "eth0"])?;
        // The agent tells the driver, which else goes by what it remembers.
        soon(|| {
            ensure!(sent_by_the_stack()? != 0, late!("{to}: none by the stack"));
            Ok(())
        })?;
        soon(all_by_the_driver)?;
    }
    Ok(())
}

/// What the driver sends does not make the kernel ask whether a neighbour is there yet; the agent does.
#[test]
fn neighbours_that_the_driver_sends_to_are_asked_whether_they_are_there() -> Result<()> {
    let cluster = cluster("native")?;
    let node = &cluster.nodes[1].host.netns;
    wait_for(&cluster.nodes[1], "eth0", XdpMode::Native)?;
    // It is sure for half to one and a half times as long as this: for longer than it waits before it asks, else it
    // would ask by itself; and asks and is unsure again before the agent looks again.
    node.sysctl(&[
        ("ipv4/neigh/eth0/base_reachable_time_ms", "2200"),
        ("ipv6/neigh/eth0/base_reachable_time_ms", "2200"),
        ("ipv4/neigh/eth0/delay_first_probe_time", "1"),
        ("ipv6/neigh/eth0/delay_first_probe_time", "1"),
    ])?;
    // What is known keeps the time that it was given.
    node.output("ip", &["neighbour", "flush", "dev", "eth0"])?;
    for (_, to) in THROUGH.iter().filter(|(proto, _)| *proto == LINE) {
        let connection = Open::new(&cluster, Client, to)?;
        let neighbour = if to.starts_with('[') { "fd00:50::11" } else { "192.168.50.11" };
        let turns = |wanted: &dyn Fn(&str) -> bool| {
            until(Duration::from_secs(60), || {
                assert_eq!(connection.outlives(Bulk { up: 1_000, down: 1_000 })?.server, "pod1-1");
                let shown = node.output("ip", &["neighbour", "show", neighbour, "dev", "eth0"])?;
                ensure!(wanted(&shown), late!("{shown}"));
                Ok(())
            })
        };
        turns(&|shown| shown.contains("STALE")).context("to be unsure of it")?;
        node.nft(FORWARDED)?;
        turns(&|shown| shown.contains("lladdr") && !shown.contains("STALE")).context("to ask it")?;
        assert_eq!(forwarded(node)?, 0, "{to}: by the stack, which asks by itself");
        node.nft("delete table inet seen")?;
    }
    Ok(())
}

/// What they remember is good until then.
#[test]
fn drivers_are_told_when_routes_may_have_changed() -> Result<()> {
    let cluster = cluster("native")?;
    let node = &cluster.nodes[1];
    let pins = Pins::new(node.agent.pins());
    let told = || -> Result<u64> {
        let map = Map::Array(MapData::from_pin(pins.map("routes"))?);
        Ok(Array::<_, u64>::try_from(map)?.get(&0, 0)?)
    };
    for change in [
        "neighbour replace 192.168.50.77 lladdr 02:00:00:00:00:01 dev eth0 nud permanent\n\
         neighbour replace 192.168.50.77 lladdr 02:00:00:00:00:02 dev eth0 nud permanent",
        "neighbour delete 192.168.50.77 dev eth0",
        "route add 192.0.2.0/24 via 192.168.50.77",
        "route delete 192.0.2.0/24",
        "route add 2001:db8::/64 dev eth0",
        "rule add from 192.0.2.1 lookup 77",
        "rule delete from 192.0.2.1 lookup 77",
        "link set eth0 mtu 1400",
    ] {
        let before = told()?;
        node.host.netns.ip(change)?;
        soon(|| {
            ensure!(told()? > before, late!("{change}: {before}"));
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn the_driver_opens_connections_of_clients_that_stick() -> Result<()> {
    let mut cluster = cluster("native")?;
    let mut objects = manifests::two_nodes()?;
    manifests::find(&mut objects, "Service", "one")?["spec"]["sessionAffinity"] = "ClientIP".into();
    for node in &mut cluster.nodes {
        node.agent.write(&objects)?;
        node.agent.wait_in_sync()?;
    }
    wait_for(&cluster.nodes[1], "eth0", XdpMode::Native)?;
    all_get_through(&cluster)?;
    let node = &cluster.nodes[1].host.netns;
    node.nft(FORWARDED)?;
    for (_, to) in THROUGH.iter().filter(|(proto, _)| *proto == LINE) {
        let connection = Open::new(&cluster, Client, to)?;
        assert_eq!(connection.outlives(Bulk { up: 100_000, down: 100_000 })?.server, "pod1-1");
    }
    assert_eq!(forwarded(node)?, 0, "not all by the driver");
    Ok(())
}

#[test]
fn no_packet_is_lost_while_agents_come_and_go() -> Result<()> {
    let mut cluster = cluster("native")?;
    counts_losses();
    for (proto, to) in THROUGH {
        let keep = Some(kept(proto, to));
        let dial = Dial { keep, ..Dial::new(&cluster.client.netns, proto, to.parse()?) };
        cluster.outside.dial(&dial)?;
    }
    for _ in 0..3 {
        let node = &mut cluster.nodes[1];
        node.agent.stop()?;
        node.agent.start(&node.host.netns)?;
        let (sent, lost) = exchanges_until_in_sync(&cluster)?;
        assert!(sent > 100, "{sent}");
        println!("{sent} packets asked and answered, {lost} lost");
        assert_eq!(lost, 0, "of {sent}");
        assert_eq!(status(&cluster.nodes[1], "eth0")?.mode, XdpMode::Native);
    }
    Ok(())
}

/// Asks by open connections until the agent of node 2 is in sync, and a little longer. A
/// datagram that is lost is not sent again.
fn exchanges_until_in_sync(cluster: &Cluster) -> Result<(usize, usize)> {
    let (mut sent, mut lost) = (0, 0);
    let mut last = false;
    while !std::mem::replace(&mut last, cluster.nodes[1].agent.is_in_sync()) {
        for (proto, to) in THROUGH.repeat(20) {
            let exchange = Exchange { keep: kept(proto, to), timeout_ms: PATIENCE_MS, bulk: Bulk::default() };
            let outcome = cluster.outside.exchange(exchange)?;
            sent += 1;
            lost += usize::from(!matches!(outcome, Outcome::Answered(_)));
        }
    }
    Ok((sent, lost))
}

fn kept(proto: Proto, to: &str) -> String {
    format!("{proto} {to}")
}

#[test]
fn a_change_of_the_configuration_is_followed() -> Result<()> {
    let mut cluster = cluster("native")?;
    for (xdp, mode) in [
        ("native", XdpMode::Native),
        ("auto", XdpMode::None),
        ("generic", XdpMode::Native),
        ("off", XdpMode::None),
    ] {
        let node = &mut cluster.nodes[1];
        node.agent.configure(&Value::Object(Default::default()), &configuration(xdp))?;
        node.agent.stop()?;
        node.agent.start(&node.host.netns)?;
        node.agent.wait_in_sync()?;
        wait_for(node, "eth0", mode).context(xdp)?;
        let shown = node.host.netns.output("ip", &["link", "show", "eth0"])?;
        assert_eq!(shown.contains("xdp"), mode == XdpMode::Native, "{xdp}: {shown}");
        all_get_through(&cluster)?;
    }
    let node = &mut cluster.nodes[1];
    node.agent.configure(&Value::Object(Default::default()), &configuration("native"))?;
    node.agent.stop()?;
    node.agent.start(&node.host.netns)?;
    wait_for(node, "eth0", XdpMode::Native)?;
    node.agent.stop()?;
    node.agent.shunt(&node.host.netns, &["cleanup"])?;
    assert!(!node.host.netns.output("ip", &["link", "show", "eth0"])?.contains("xdp"));
    Ok(())
}

#[test]
fn what_cannot_have_it_says_why_and_works_without() -> Result<()> {
    let cluster = cluster("native")?;
    let node = &cluster.nodes[0];
    let (lan, far) = cluster.far_end(0);
    // Nobody at the other end takes frames: the stack has to send them.
    offload::as_wire(lan, far, false)?;
    // A change the agent hears of.
    node.host.netns.ip("link set eth0 mtu 1499\nlink set eth0 mtu 1500")?;
    let reason = wait_for(node, "eth0", XdpMode::None)?;
    assert!(reason.contains("other end"), "{reason}");
    answer(&cluster, Client, LINE, "192.168.50.11:30190")?;
    Ok(())
}

/// A node whose uplink can have it, and other node edges that cannot.
pub(crate) fn with_links_of_every_kind(xdp: &str) -> Result<Cluster> {
    let mut shunt = configuration(xdp);
    shunt["interfaces"] = serde_json::json!({"node": ["x*"]});
    let mut cluster = Cluster::build(1, &shunt)?;
    cluster.wire()?;
    let node = &cluster.nodes[0].host.netns;
    node.ip(
        "link add xbridge type bridge\nlink add xifb type ifb\nlink add xvxlan type vxlan id 7 dstport 4789\n\
         link add link eth0 name xmacvlan type macvlan\nlink set xbridge up\nlink set xifb up",
    )?;
    cluster.start(&manifests::two_nodes()?)?;
    Ok(cluster)
}

#[test]
fn links_of_every_kind_and_what_becomes_of_them() -> Result<()> {
    let cluster = with_links_of_every_kind("native")?;
    let node = &cluster.nodes[0];
    assert_eq!(wait_for(node, "eth0", XdpMode::Native)?, "");
    for interface in ["xbridge", "xifb", "xvxlan", "xmacvlan"] {
        let reason = wait_for(node, interface, XdpMode::None).with_context(|| interface.to_owned())?;
        assert!(reason.contains("does not support XDP in native mode"), "{interface}: {reason}");
    }
    // It comes and goes.
    node.host.netns.ip("link delete xifb")?;
    soon(|| {
        ensure!(status(node, "eth0").is_ok() && status(node, "xifb").is_err(), late!("xifb is still there"));
        Ok(())
    })
}

#[test]
fn the_stack_takes_the_place_of_a_driver_that_cannot() -> Result<()> {
    let mut cluster = with_links_of_every_kind("generic")?;
    for how_the_reason_begins in ["the kernel says", "the driver has refused"] {
        let node = &mut cluster.nodes[0];
        for interface in ["xbridge", "xifb", "xmacvlan"] {
            let reason = wait_for(node, interface, XdpMode::Generic)?;
            assert!(reason.starts_with(how_the_reason_begins), "{interface}: {reason}");
        }
        assert_eq!(wait_for(node, "eth0", XdpMode::Native)?, "");
        node.agent.stop()?;
        node.agent.start(&node.host.netns)?;
        node.agent.wait_in_sync()?;
    }
    Ok(())
}

/// Gives addresses and routes of node 2's uplink to another device.
fn move_uplink(node: &Node, device: &str) -> Result<()> {
    node.host.netns.ip(&format!(
        "address flush dev eth0\nlink set {device} up\naddress add {}/24 dev {device}\n\
         address add {}/64 dev {device} nodad\nroute replace 10.244.1.0/24 via 192.168.50.11\n\
         route replace fd00:244:1::/64 via fd00:50::11 dev {device}\nroute replace default via 192.168.50.200\n\
         route replace ::/0 via fd00:50::200 dev {device}",
        node.host.v4, node.host.v6
    ))
}

/// Node 2 forwards in the driver's hook, whatever its uplink has become.
fn check_uplink(mut cluster: Cluster, device: &str, reason: &str) -> Result<()> {
    cluster.start(&manifests::two_nodes()?)?;
    let node = &cluster.nodes[1];
    assert_eq!(wait_for(node, device, XdpMode::Native)?, reason);
    all_get_through(&cluster)?;
    node.host.netns.nft(FORWARDED)?;
    for _ in 0..5 {
        all_get_through(&cluster)?;
    }
    assert_eq!(forwarded(&node.host.netns)?, 0);
    Ok(())
}

/// A cluster whose node 2 has one more device, made by these lines. None if this kernel has
/// no such devices.
fn with_device(lines: &str) -> Result<Option<Cluster>> {
    let cluster = Cluster::build(2, &configuration("native"))?;
    cluster.wire()?;
    match cluster.nodes[1].host.netns.ip(lines) {
        Ok(()) => Ok(Some(cluster)),
        Err(error) if format!("{error:#}").contains("Unknown device type") => {
            skipped(&format!("this kernel has no such devices: {lines}"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[test]
fn tagged_frames_are_forwarded_by_the_device_under_the_vlan() -> Result<()> {
    let Some(cluster) = with_device("link add link eth0 name eth0.7 type vlan id 7")? else { return Ok(()) };
    let (lan, port) = cluster.far_end(1);
    lan.ip(&format!(
        "link set {port} nomaster\nlink add link {port} name {port}.7 type vlan id 7\n\
         link set {port}.7 master lan up"
    ))?;
    move_uplink(&cluster.nodes[1], "eth0.7")?;
    check_uplink(cluster, "eth0.7", "by eth0")
}

#[test]
fn a_bond_forwards_what_its_ports_receive() -> Result<()> {
    let Some(cluster) = with_device("link add bond0 type bond mode active-backup miimon 100")? else {
        return Ok(());
    };
    let node = &cluster.nodes[1];
    node.host.netns.ip("link set eth0 down\nlink set eth0 master bond0")?;
    move_uplink(node, "bond0")?;
    check_uplink(cluster, "bond0", "")
}

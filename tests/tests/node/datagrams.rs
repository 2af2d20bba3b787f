//! UDP sockets under socket LB that send by address: each datagram asks again where it goes, and what the
//! socket was told before is kept with it.

use crate::{
    copies,
    udp::{move_to_node_2, write},
    world::{soon, two_nodes},
};
use anyhow::{Context, Result, ensure};
use proxy_common::{Ip4, Ip6, maps::socket_datagrams::SENT};
use proxy_userspace::kernel::{PinnedMaps, Pins};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tests::{
    agent::SocketLb,
    late, manifests,
    probe::{Answer, Datagrams},
    topology::cluster::{Cluster, Origin::Pod},
};

/// The service `one`, whose only backend runs on the first node.
const ONE: [&str; 2] = ["10.96.0.20:53", "[fd00:96::20]:53"];
/// The service `web`, with several backends.
const WEB: [&str; 2] = ["10.96.0.10:53", "[fd00:96::10]:53"];

/// Sends from a socket in the second pod of the first node.
fn send(cluster: &Cluster, socket: &str, to: &[SocketAddr]) -> Result<Vec<Answer>> {
    let (host, worker) = cluster.host(Pod(0, 1));
    let datagrams = Datagrams { netns: host.netns.path(), socket: socket.into(), to: to.into() };
    let outcomes = worker.send(datagrams)?.into_iter().zip(to);
    outcomes.map(|(outcome, to)| outcome.answer(format_args!("{socket} → {to}"))).collect()
}

/// The address of another service, of either family.
fn more(number: u8, v4: bool) -> IpAddr {
    if v4 {
        Ipv4Addr::new(10, 96, 0, 200 + number).into()
    } else {
        Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x200 + u16::from(number)).into()
    }
}

/// The objects of two nodes, and more services with the endpoints of `one`.
fn objects(count: u8) -> Result<Vec<Value>> {
    let mut objects = manifests::two_nodes()?;
    for number in 0..count {
        let service =
            copies::add(&mut objects, &format!("more{number}"), [true, false].map(|v4| more(number, v4)))?;
        let ports = service["spec"]["ports"].as_array_mut().context("ports")?;
        ports.retain(|port| port["protocol"] == "UDP");
    }
    Ok(objects)
}

#[test]
fn a_socket_that_sends_by_address_stays_with_its_backend() -> Result<()> {
    let cluster = two_nodes(SocketLb::All)?;
    for to in WEB {
        let to: SocketAddr = to.parse()?;
        let answers = send(&cluster, &to.to_string(), &[to; 50])?;
        for answer in &answers {
            assert_eq!((&answer.server, answer.peer), (&answers[0].server, to));
        }
    }
    Ok(())
}

#[test]
fn a_socket_may_speak_to_more_services_than_it_remembers() -> Result<()> {
    const SERVICES: u8 = 2 * SENT as u8;
    let mut cluster = two_nodes(SocketLb::All)?;
    write(&mut cluster, &objects(SERVICES)?)?;
    cluster.nodes[0].agent.wait_in_sync()?;
    for v4 in [true, false] {
        let all: Vec<_> = (0..SERVICES).map(|number| SocketAddr::new(more(number, v4), 53)).collect();
        // All of them have the same backend: which one an answer is from shows by what was asked last.
        for to in [&all[..], &all[..], &all[..5], &all[..5]] {
            let answers = send(&cluster, if v4 { "v4" } else { "v6" }, to)?;
            let seen: Vec<_> = answers.iter().map(|answer| answer.peer).collect();
            assert_eq!(seen, to);
        }
    }
    let maps = PinnedMaps::open(Pins::new(cluster.nodes[0].agent.pins()))?;
    assert_eq!(maps.socket_pairs::<Ip4>()?.len(), SENT);
    assert_eq!(maps.socket_pairs::<Ip6>()?.len(), SENT);
    Ok(())
}

/// The backend goes on to serve another service, so that its row stays.
#[test]
fn a_socket_that_sends_by_address_leaves_a_backend_that_its_service_has_lost() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::All)?;
    let mut objects = objects(1)?;
    write(&mut cluster, &objects)?;
    cluster.nodes[0].agent.wait_in_sync()?;
    let mut before = Vec::new();
    for to in ONE {
        before.push(send(&cluster, to, &[to.parse()?])?.remove(0).server);
    }
    move_to_node_2(&mut objects)?;
    write(&mut cluster, &objects)?;
    for (to, before) in ONE.into_iter().zip(&before) {
        soon(|| {
            let answer = send(&cluster, to, &[to.parse()?])?.remove(0);
            ensure!(answer.server != *before, late!("{to}: still {before}"));
            assert_eq!(answer.peer, to.parse()?);
            Ok(())
        })?;
        let kept = SocketAddr::new(more(0, to == ONE[0]), 53);
        let answer = send(&cluster, to, &[kept])?.remove(0);
        assert_eq!((&answer.server, answer.peer), (before, kept));
    }
    Ok(())
}

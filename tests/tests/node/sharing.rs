//! UDP sockets that threads share under socket LB: every answer comes from whom its datagram was sent to.

use crate::{copies, udp::write, world::two_nodes};
use anyhow::Result;
use std::net::{IpAddr, SocketAddr};
use tests::{
    agent::SocketLb,
    manifests,
    probe::Share,
    topology::cluster::{Cluster, Origin::Pod},
};

/// Two services of one backend each, and a backend of a third.
const ASKED: [[&str; 3]; 2] = [
    ["10.96.0.20:53", "10.96.0.40:53", "10.244.2.10:5353"],
    ["[fd00:96::20]:53", "[fd00:96::40]:53", "[fd00:244:2::10]:5353"],
];
const BACKENDS: [&str; 3] = ["pod1-1", "pod2-2", "pod2-1"];

fn world() -> Result<Cluster> {
    let mut cluster = two_nodes(SocketLb::All)?;
    cluster.nodes[1].serve(1)?;
    let mut objects = manifests::two_nodes()?;
    let addresses: [IpAddr; 2] = ["10.96.0.40".parse()?, "fd00:96::40".parse()?];
    copies::add(&mut objects, "another", addresses)?;
    copies::lead(&mut objects, "another", Some(["10.244.2.11", "fd00:244:2::11"]))?;
    write(&mut cluster, &objects)?;
    cluster.nodes[0].agent.wait_in_sync()?;
    Ok(cluster)
}

/// Has a thread send to each of them, by sockets in the second pod of the first node.
fn share(cluster: &Cluster, to: &[&str], sockets: usize, datagrams: usize) -> Result<()> {
    let (host, worker) = cluster.host(Pod(0, 1));
    let to: Vec<SocketAddr> = to.iter().map(|to| to.parse()).collect::<Result<_, _>>()?;
    let share = Share { netns: host.netns.path(), to: to.clone(), sockets, datagrams };
    for (outcome, to) in worker.share(share)?.into_iter().zip(&to) {
        let answer = outcome.answer(format_args!("thread of {to}, {to:?}"))?;
        assert!(BACKENDS.contains(&answer.server.as_str()), "{answer}");
    }
    Ok(())
}

#[test]
fn threads_that_send_by_one_socket_first_get_answers_of_whom_they_asked() -> Result<()> {
    let cluster = world()?;
    for to in ASKED {
        (0..3).try_for_each(|_| share(&cluster, &to[..2], 300, 1))?;
    }
    Ok(())
}

#[test]
fn threads_that_go_on_sending_by_one_socket_get_answers_of_whom_they_asked() -> Result<()> {
    let cluster = world()?;
    for to in ASKED {
        share(&cluster, &to, 200, 50)?;
    }
    Ok(())
}

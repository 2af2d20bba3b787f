//! ICMP errors reach whom they are meant for, about the packet that it sent: refused datagrams, path
//! MTU discovery and traceroute through services, with the errors of real stacks.

use crate::{
    dsr,
    world::{Open, answer, lead_datagrams_to, soon, two_nodes, two_nodes_with_clsact},
    xdp,
};
use anyhow::{Context, Result, bail, ensure};
use nix::sys::{
    signal::Signal,
    socket::{
        ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt,
        sockopt::{Ipv4RecvErr, Ipv6RecvErr},
    },
};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    io::IoSliceMut,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::AsRawFd,
};
use tests::{
    agent::SocketLb,
    late,
    probe::{Bulk, Outcome, Proto},
    topology::cluster::{
        Cluster,
        Origin::{self, Client, Node, Pod},
    },
};

/// Ways to the backend on node 1 that lead through another node or stay within node 1: of pods, of host
/// processes on the packet path, and of outside clients, which are masqueraded. The port follows.
const WAYS: [(Origin, &str, Face); 9] = [
    (Pod(0, 1), "10.96.0.20", Face::Cluster),
    (Pod(1, 1), "10.96.0.20", Face::Cluster),
    (Pod(1, 1), "fd00:96::20", Face::Cluster),
    (Node(1), "10.96.0.20", Face::Cluster),
    (Node(1), "fd00:96::20", Face::Cluster),
    (Client, "192.168.50.11", Face::Node),
    (Client, "192.168.50.12", Face::Node),
    (Client, "fd00:50::11", Face::Node),
    (Client, "fd00:50::12", Face::Node),
];

#[derive(Clone, Copy)]
enum Face {
    Cluster,
    Node,
}

impl Face {
    fn udp(self) -> u16 {
        match self {
            Self::Cluster => 53,
            Self::Node => 30153,
        }
    }

    fn tcp(self) -> u16 {
        match self {
            Self::Cluster => 90,
            Self::Node => 30190,
        }
    }
}

pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// A datagram socket in the namespace of `from`, connected, with an error queue.
pub(crate) fn connect(cluster: &Cluster, from: Origin, to: SocketAddr) -> Result<Socket> {
    cluster.host(from).0.netns.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None)?;
        if to.is_ipv4() {
            setsockopt(&socket, Ipv4RecvErr, &true)?;
        } else {
            setsockopt(&socket, Ipv6RecvErr, &true)?;
        }
        socket.connect(&SockAddr::from(to))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    })
}

/// An ICMP error as the kernel tells a socket: errno, who sent it, and the MTU if it is about that.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) errno: i32,
    pub(crate) by: Option<IpAddr>,
    pub(crate) mtu: u32,
    /// Destination of the datagram it is about.
    pub(crate) about: Option<SocketAddr>,
}

fn told(socket: &Socket) -> Result<Told> {
    let mut bytes = [0; 2048];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut control = nix::cmsg_space!([u8; 128]);
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut control),
        MsgFlags::MSG_ERRQUEUE,
    );
    let message = message.map_err(|error| late::of_socket(error.into()))?;
    let about = message.address.as_ref().and_then(|a| {
        let v4 = a.as_sockaddr_in().map(|a| SocketAddr::from((a.ip(), a.port())));
        v4.or_else(|| a.as_sockaddr_in6().map(|a| SocketAddr::from((a.ip(), a.port()))))
    });
    let found = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4RecvErr(error, by) => {
            let by = by.map(|by| Ipv4Addr::from(u32::from_be(by.sin_addr.s_addr)).into());
            Some(Told { errno: error.ee_errno as i32, by, mtu: error.ee_info, about })
        }
        ControlMessageOwned::Ipv6RecvErr(error, by) => {
            let by = by.map(|by| IpAddr::from(by.sin6_addr.s6_addr));
            Some(Told { errno: error.ee_errno as i32, by, mtu: error.ee_info, about })
        }
        _ => None,
    });
    found.context("no error among the control messages")
}

/// Sends until an error comes back: routers answer each client a few times a second only.
pub(crate) fn provoke(socket: &Socket, bytes: usize) -> Result<Told> {
    soon(|| {
        // What was told before makes this call fail, and is read below.
        let _ = socket.send(&vec![7; bytes]);
        told(socket)
    })
}

#[test]
fn a_closed_port_of_the_backend_refuses_the_datagram() -> Result<()> {
    for cluster in [two_nodes(SocketLb::Off)?, xdp::cluster("native")?, dsr::cluster()?] {
        datagrams_are_refused(cluster)?;
    }
    Ok(())
}

fn datagrams_are_refused(mut cluster: Cluster) -> Result<()> {
    for (from, address, face) in WAYS {
        answer(&cluster, from, Proto::Udp, &at(address, face.udp()).to_string())?;
    }
    lead_datagrams_to(&mut cluster, 5354)?;
    for (from, address, face) in WAYS {
        let to = at(address, face.udp());
        soon(|| match cluster.dial(from, Proto::Udp, to, 1)?.remove(0) {
            Outcome::Refused => Ok(()),
            Outcome::TimedOut => bail!(late!("{from:?} → {to}: not refused yet")),
            other => bail!("{from:?} → {to}: {other}"),
        })?;
        let told = provoke(&connect(&cluster, from, to)?, 10)?;
        assert_eq!((told.errno, told.by, told.about), (libc::ECONNREFUSED, Some(to.ip()), Some(to)));
    }
    Ok(())
}

/// A link to the pods of node 1 that is narrower than any other.
fn narrow(cluster: &Cluster, mtu: u32) -> Result<()> {
    cluster.nodes[0].host.netns.ip(&format!("link set cni0 mtu {mtu}"))
}

/// All but pods of node 1, which share a link with the backend.
fn over_the_narrow_link() -> impl Iterator<Item = (Origin, &'static str, Face)> {
    WAYS.into_iter().filter(|(from, ..)| *from != Pod(0, 1))
}

#[test]
fn tcp_finds_the_path_mtu() -> Result<()> {
    transfers_find_the_path_mtu(two_nodes(SocketLb::Off)?)
}

#[test]
fn tcp_finds_the_path_mtu_past_the_stack() -> Result<()> {
    transfers_find_the_path_mtu(xdp::cluster("native")?)
}

#[test]
fn tcp_finds_the_path_mtu_with_direct_server_return() -> Result<()> {
    transfers_find_the_path_mtu(dsr::cluster()?)
}

fn transfers_find_the_path_mtu(cluster: Cluster) -> Result<()> {
    narrow(&cluster, 1300)?;
    for (from, address, face) in over_the_narrow_link() {
        let to = at(address, face.tcp()).to_string();
        let answer = Open::new(&cluster, from, &to)?.send(Bulk { up: 1 << 20, down: 1 << 20 })?;
        assert_eq!((answer.server.as_str(), answer.received), ("pod1-1", 1 << 20), "{from:?} → {to}");
        let route = cluster.host(from).0.netns.output("ip", &["route", "get", address])?;
        assert!(route.contains("mtu 1300"), "{from:?} knows of {to}: {route}");
    }
    Ok(())
}

#[test]
fn datagrams_that_are_too_big_are_told_the_path_mtu() -> Result<()> {
    for cluster in [two_nodes(SocketLb::Off)?, xdp::cluster("native")?, dsr::cluster()?] {
        datagrams_are_told_the_path_mtu(&cluster)?;
    }
    Ok(())
}

fn datagrams_are_told_the_path_mtu(cluster: &Cluster) -> Result<()> {
    narrow(cluster, 1300)?;
    for (from, address, face) in over_the_narrow_link() {
        let to = at(address, face.udp());
        let socket = connect(cluster, from, to)?;
        let told = provoke(&socket, 1400)?;
        assert_eq!((told.errno, told.mtu, told.about), (libc::EMSGSIZE, 1300, Some(to)), "{from:?}");
        assert_eq!(told.by, Some(to.ip()), "{from:?}");
    }
    Ok(())
}

/// Sends with few hops: every router on the way tells, as from the frontend.
fn trace(cluster: &Cluster, from: Origin, to: SocketAddr, routers: u32) -> Result<()> {
    for hops in 1..=routers {
        let socket = connect(cluster, from, to)?;
        if to.is_ipv4() {
            socket.set_ttl_v4(hops)?
        } else {
            socket.set_unicast_hops_v6(hops)?
        }
        let told = provoke(&socket, 10)?;
        let told = (told.errno, told.by, told.about);
        ensure!(told == (libc::EHOSTUNREACH, Some(to.ip()), Some(to)), "{from:?}, {hops} hops: {told:?}");
    }
    let socket = connect(cluster, from, to)?;
    if to.is_ipv4() {
        socket.set_ttl_v4(routers + 1)?
    } else {
        socket.set_unicast_hops_v6(routers + 1)?
    }
    soon(|| {
        socket.send(b"hi")?;
        let received = socket.recv(&mut [std::mem::MaybeUninit::uninit(); 2048]);
        ensure!(received.map_err(late::of_socket)? > 0);
        Ok(())
    })
}

/// To the backend on node 1, and how many routers there are on the way.
const TRACES: [(Origin, &str, Face, u32); 8] = [
    (Pod(0, 1), "10.96.0.20", Face::Cluster, 1),
    (Pod(1, 1), "10.96.0.20", Face::Cluster, 2),
    (Pod(1, 1), "fd00:96::20", Face::Cluster, 2),
    (Node(1), "10.96.0.20", Face::Cluster, 1),
    (Node(1), "fd00:96::20", Face::Cluster, 1),
    (Client, "192.168.50.11", Face::Node, 1),
    (Client, "192.168.50.12", Face::Node, 2),
    (Client, "fd00:50::12", Face::Node, 2),
];

fn trace_all(cluster: &Cluster) -> Result<()> {
    TRACES.iter().try_for_each(|(from, address, face, routers)| {
        trace(cluster, *from, at(address, face.udp()), *routers)
    })
}

#[test]
fn traceroute_sees_every_hop() -> Result<()> {
    trace_all(&two_nodes(SocketLb::Off)?)?;
    trace_all(&two_nodes_with_clsact()?)?;
    trace_all(&xdp::cluster("native")?)?;
    trace_all(&dsr::cluster()?)
}

#[test]
fn errors_are_translated_whatever_becomes_of_the_agent() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    trace_all(&cluster)?;
    cluster.nodes[1].agent.kill(Signal::SIGKILL)?;
    trace_all(&cluster)?;
    let node = &mut cluster.nodes[1];
    node.agent.start(&node.host.netns)?;
    node.agent.wait_in_sync()?;
    trace_all(&cluster)?;
    cluster.nodes[1].agent.stop()?;
    trace_all(&cluster)?;
    answer(&cluster, Client, Proto::Tcp, "192.168.50.12:30190").map(drop)
}

//! A socket that is connected, connected elsewhere, to nobody, and used by address.

use super::{
    Bulk, Outcome, PATIENCE_MS, Proto,
    dial::Kept,
    protocol::{Step, Steps},
    socket::{open, outcome_of},
    tcp::Connection,
    udp::Client,
};
use crate::netns;
use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use socket2::Socket;
use std::{collections::HashMap, fs::File, io, net::SocketAddr, os::fd::AsRawFd, time::Duration};

const PATIENCE: Duration = Duration::from_millis(PATIENCE_MS);

pub(super) fn walk(walk: &Steps, kept: &mut HashMap<String, Kept>) -> Result<Vec<Outcome>> {
    let address = |step: &Step| match step {
        Step::Connect(to) | Step::AskAt(to) => Some(to.ip()),
        Step::Ask | Step::Disconnect => None,
    };
    let family_of = walk.steps.iter().find_map(address).context("no address")?;
    let netns = File::open(&walk.netns)?;
    let socket = netns::inside(&netns, || open(family_of, walk.proto))?;
    let mut outcomes = Vec::new();
    for step in &walk.steps {
        outcomes.extend(take(&socket, walk.proto, *step).with_context(|| format!("{step:?}"))?);
    }
    if let Some(name) = &walk.keep {
        ensure!(walk.proto == Proto::Udp, "{} sockets are not kept", walk.proto);
        let peer = peer(&socket)?;
        kept.insert(name.clone(), Kept::Udp(Client::over(socket.into(), peer, true)));
    }
    Ok(outcomes)
}

fn peer(socket: &Socket) -> Result<SocketAddr> {
    socket.peer_addr()?.as_socket().context("an address")
}

fn take(socket: &Socket, proto: Proto, step: Step) -> Result<Option<Outcome>> {
    Ok(match step {
        Step::Connect(to) => Some(match socket.connect_timeout(&to.into(), PATIENCE) {
            Ok(()) => ask(socket, proto)?,
            Err(error) => outcome_of(&error, "connect"),
        }),
        Step::Ask => Some(ask(socket, proto)?),
        Step::AskAt(to) => Some(Client::over(socket.try_clone()?.into(), to, false).exchange(PATIENCE)),
        Step::Disconnect => {
            disconnect(socket)?;
            let peer = socket.peer_addr();
            let is_connected = !peer.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotConnected);
            ensure!(!is_connected, "connected to nobody, the peer is {peer:?}");
            None
        }
    })
}

fn ask(socket: &Socket, proto: Proto) -> Result<Outcome> {
    Ok(match proto {
        Proto::Tcp => Connection::over(socket.try_clone()?).exchange(Bulk::default(), PATIENCE),
        Proto::Udp => Client::over(socket.try_clone()?.into(), peer(socket)?, true).exchange(PATIENCE),
        other => bail!("no steps of {other}"),
    })
}

fn disconnect(socket: &Socket) -> Result<()> {
    // SAFETY: zero is valid for these integers.
    let mut nobody: libc::sockaddr = unsafe { std::mem::zeroed() };
    nobody.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
    let len = size_of_val(&nobody) as libc::socklen_t;
    // SAFETY: the address lives across the call and is as long as it says.
    let result = unsafe { libc::connect(socket.as_raw_fd(), &raw const nobody, len) };
    Errno::result(result).map(drop).context("connect to nobody")
}

//! UDP: one datagram each way, the answer a document. A datagram that is a number comes back as
//! it is behind the document. The answer leaves from the address the request was sent to.

use super::{
    Answer, Outcome, PATIENCE_MS, Proto,
    load::Wrong,
    protocol::Datagrams,
    serve::Ledger,
    socket::{any, hold, open, outcome_of, want_destination},
};
use crate::{load::Ending, netns};
use anyhow::{Context, Result, ensure};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg, sendmsg,
};
use socket2::Socket;
use std::{
    collections::HashMap,
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

/// What numbered datagrams begin with.
const NUMBERED: &[u8] = b"number ";
/// Bytes: tens of seconds of a load.
const ROOM: libc::c_int = 8 << 20;

pub(super) fn listen(address: SocketAddr) -> Result<Socket> {
    let socket = roomy(address.ip())?;
    want_destination(&socket, address.ip())?;
    socket.bind(&address.into()).with_context(|| format!("listen on UDP {address}"))?;
    Ok(socket)
}

pub(super) fn serve(socket: &Socket, ledger: &Ledger) {
    let Some(port) = socket.local_addr().ok().and_then(|address| address.as_socket()).map(|a| a.port())
    else {
        return;
    };
    let mut buffer = [0; 2048];
    loop {
        // An error is an ICMP message about an earlier answer.
        let Ok(Some(received)) = receive(socket, &mut buffer) else { continue };
        let local = SocketAddr::new(received.to, port);
        ledger.record(Proto::Udp, local, received.from);
        let answer = Answer {
            server: ledger.name().into(),
            local,
            saw: received.from,
            peer: local,
            received: received.len,
        };
        if let Ok(mut text) = serde_json::to_vec(&answer) {
            text.extend(number_of(&buffer[..received.len]).map(u64::to_be_bytes).into_iter().flatten());
            // The first attempt may fail with an ICMP error that an earlier answer caused. A client
            // that is gone misses its answer, which is its own outcome.
            let sent = send(socket, &text, received.to, received.from);
            let _ = sent.or_else(|_| send(socket, &text, received.to, received.from));
        }
    }
}

/// A socket that holds what arrives while its thread waits for a CPU.
pub(super) fn roomy(family_of: IpAddr) -> Result<Socket> {
    let socket = open(family_of, Proto::Udp)?;
    hold(&socket, ROOM)?;
    Ok(socket)
}

pub(super) fn numbered(number: u64) -> Vec<u8> {
    [NUMBERED, &number.to_be_bytes()].concat()
}

fn number_of(datagram: &[u8]) -> Option<u64> {
    datagram.strip_prefix(NUMBERED).and_then(|rest| rest.try_into().ok()).map(u64::from_be_bytes)
}

/// A client's socket for numbered datagrams.
#[derive(Debug)]
pub(super) struct Numbered(Client);

impl Numbered {
    pub(super) fn open(to: SocketAddr, connected: bool) -> Result<Self> {
        let socket = roomy(to.ip())?;
        if connected {
            socket.connect(&to.into())?;
        }
        Ok(Self(Client { socket: socket.into(), to, connected }))
    }

    pub(super) fn send(&self, number: u64) -> io::Result<()> {
        self.0.send(&numbered(number)).map(drop)
    }

    /// The number of an answer that comes until then.
    pub(super) fn receive(&self, deadline: Instant) -> Result<u64> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.0.socket.set_read_timeout(Some(left))?;
        let mut buffer = [0; 2048];
        let (len, source) = self.0.socket.recv_from(&mut buffer)?;
        if source != self.0.to {
            return Err(Wrong(Ending::Misaddressed, format!("answered from {source}")).into());
        }
        let (_, number) = buffer[..len].split_last_chunk().context("an answer without a number")?;
        Ok(u64::from_be_bytes(*number))
    }
}

/// A datagram and both of its addresses. For raw sockets the port is zero.
pub(super) struct Received {
    pub(super) from: SocketAddr,
    pub(super) to: IpAddr,
    pub(super) len: usize,
}

/// Receives with the destination address, which [`want_destination`] asked for.
pub(super) fn receive(socket: &Socket, buffer: &mut [u8]) -> Result<Option<Received>> {
    let mut parts = [IoSliceMut::new(buffer)];
    let mut control = nix::cmsg_space!(libc::in6_pktinfo);
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty())?;
    let Some(from) = message.address.as_ref().and_then(to_std) else { return Ok(None) };
    let to = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            Some(IpAddr::V4(u32::from_be(info.ipi_addr.s_addr).into()))
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(IpAddr::V6(info.ipi6_addr.s6_addr.into())),
        _ => None,
    });
    Ok(to.map(|to| Received { from, to, len: message.bytes }))
}

/// Sends from a chosen source address.
pub(super) fn send(socket: &Socket, bytes: &[u8], from: IpAddr, to: SocketAddr) -> Result<()> {
    let parts = [IoSlice::new(bytes)];
    let fd = socket.as_raw_fd();
    match (from, to) {
        (IpAddr::V4(from), SocketAddr::V4(to)) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from(from).to_be() },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            let control = [ControlMessage::Ipv4PacketInfo(&info)];
            sendmsg(fd, &parts, &control, MsgFlags::empty(), Some(&SockaddrIn::from(to)))?;
        }
        (IpAddr::V6(from), SocketAddr::V6(to)) => {
            let info =
                libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: from.octets() }, ipi6_ifindex: 0 };
            let control = [ControlMessage::Ipv6PacketInfo(&info)];
            sendmsg(fd, &parts, &control, MsgFlags::empty(), Some(&SockaddrIn6::from(to)))?;
        }
        _ => anyhow::bail!("{from} and {to} are of different families"),
    }
    Ok(())
}

fn to_std(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|a| SocketAddr::from((a.ip(), a.port())));
    v4.or_else(|| address.as_sockaddr_in6().map(|a| SocketAddr::from((a.ip(), a.port()))))
}

/// Sends by address, and waits for each answer.
pub(super) fn by_address(
    datagrams: &Datagrams,
    sockets: &mut HashMap<String, UdpSocket>,
) -> Result<Vec<Outcome>> {
    let known = sockets.get(&datagrams.socket).map(UdpSocket::try_clone);
    let socket = match known {
        Some(socket) => socket?,
        None => {
            let family_of = datagrams.to.first().context("no destination")?.ip();
            let netns = File::open(&datagrams.netns)?;
            let socket: UdpSocket = netns::inside(&netns, || open(family_of, Proto::Udp))?.into();
            sockets.insert(datagrams.socket.clone(), socket.try_clone()?);
            socket
        }
    };
    let exchange = |to: &SocketAddr| {
        let client = Client { socket: socket.try_clone()?, to: *to, connected: false };
        Ok(client.exchange(Duration::from_millis(PATIENCE_MS)))
    };
    datagrams.to.iter().map(exchange).collect()
}

/// A client's socket.
#[derive(Debug)]
pub(super) struct Client {
    socket: UdpSocket,
    to: SocketAddr,
    connected: bool,
}

/// Opens a client. Programs may connect datagram sockets or not; services work for both.
pub(super) fn client(
    from: Option<IpAddr>,
    source_port: Option<u16>,
    to: SocketAddr,
    connected: bool,
) -> Result<Result<Client, Outcome>> {
    let socket = open(to.ip(), Proto::Udp)?;
    let from = SocketAddr::new(from.unwrap_or(any(to.ip(), 0).ip()), source_port.unwrap_or(0));
    // One port may serve several peers, a socket for each.
    socket.set_reuse_address(connected)?;
    socket.bind(&from.into()).with_context(|| format!("bind to {from}"))?;
    if connected && let Err(error) = socket.connect(&to.into()) {
        return Ok(Err(outcome_of(&error, "connect")));
    }
    Ok(Ok(Client { socket: socket.into(), to, connected }))
}

impl Client {
    /// One that sends by address unless it is connected.
    pub(super) fn over(socket: UdpSocket, to: SocketAddr, connected: bool) -> Self {
        Self { socket, to, connected }
    }

    /// Sends a datagram and waits for the answer to this very one.
    pub(super) fn exchange(&self, limit: Duration) -> Outcome {
        match self.send(b"hi") {
            Ok(_) => self.wait(Instant::now() + limit),
            Err(error) => outcome_of(&error, "send"),
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.connected { self.socket.send(bytes) } else { self.socket.send_to(bytes, self.to) }
    }

    fn wait(&self, deadline: Instant) -> Outcome {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        if let Err(error) = self.socket.set_read_timeout(Some(left)) {
            return outcome_of(&error, "receive");
        }
        let mut buffer = [0; 2048];
        match self.socket.recv_from(&mut buffer) {
            Ok((len, source)) => match self.read(&buffer[..len], source) {
                Ok(answer) => Outcome::Answered(answer),
                Err(error) => Outcome::Failed(format!("{error:#}")),
            },
            Err(error) => outcome_of(&error, "receive"),
        }
    }

    fn read(&self, text: &[u8], source: SocketAddr) -> Result<Answer> {
        let answer: Answer = serde_json::from_slice(text).context("the server's answer")?;
        if self.connected {
            let peer = self.socket.peer_addr()?;
            ensure!(peer == source, "the answer came from {source}, but the peer's name is {peer}");
        }
        Ok(Answer { peer: source, ..answer })
    }
}

//! ICMP echo on raw sockets. The kernel's own answers are switched off where a server
//! runs: they would not tell what the request looked like, and the kernel sends none
//! for addresses that are local by a routing rule only.

use super::{
    Answer, Outcome, Proto,
    serve::Ledger,
    socket::{any, open, outcome_of, want_destination},
    udp::{receive, send},
};
use anyhow::{Context, Result};
use proxy_common::checksum;
use socket2::Socket;
use std::{
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

const HEADER: usize = 8;

static SEQUENCE: AtomicU16 = AtomicU16::new(1);

/// An echo request or reply: identifier and sequence number as one value, and the data.
struct Echo<'a> {
    is_request: bool,
    id: [u8; 4],
    data: &'a [u8],
}

impl<'a> Echo<'a> {
    fn types(family_of: IpAddr) -> (u8, u8) {
        if family_of.is_ipv4() { (8, 0) } else { (128, 129) }
    }

    fn encode(&self, family_of: IpAddr) -> Vec<u8> {
        let (request, reply) = Self::types(family_of);
        let mut bytes = vec![if self.is_request { request } else { reply }, 0, 0, 0];
        bytes.extend(self.id);
        bytes.extend(self.data);
        if family_of.is_ipv4() {
            // For IPv6 the kernel fills it in, because it covers the addresses.
            let sum = !checksum::fold(checksum::sum(&bytes, 0));
            bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }

    /// Raw IPv4 sockets deliver the IP header, IPv6 ones do not.
    fn decode(bytes: &'a [u8], family_of: IpAddr) -> Option<Self> {
        let start = if family_of.is_ipv4() { usize::from(bytes.first()? & 15) * 4 } else { 0 };
        let message = bytes.get(start..).filter(|message| message.len() >= HEADER)?;
        let (request, reply) = Self::types(family_of);
        let is_request = message[0] == request;
        let id = message[4..HEADER].try_into().ok()?;
        (is_request || message[0] == reply).then_some(Self { is_request, id, data: &message[HEADER..] })
    }
}

pub(super) fn listen(address: SocketAddr) -> Result<Socket> {
    let setting = if address.is_ipv4() { "ipv4/icmp_echo_ignore_all" } else { "ipv6/icmp/echo_ignore_all" };
    fs::write(format!("/proc/sys/net/{setting}"), "1").with_context(|| format!("set {setting}"))?;
    let socket = open(address.ip(), Proto::Icmp)?;
    want_destination(&socket, address.ip())?;
    Ok(socket)
}

pub(super) fn serve(socket: &Socket, address: SocketAddr, ledger: &Ledger) {
    let mut buffer = [0; 2048];
    loop {
        let Ok(Some(received)) = receive(socket, &mut buffer) else { continue };
        let echo = Echo::decode(&buffer[..received.len], address.ip());
        let Some(Echo { id, .. }) = echo.filter(|echo| echo.is_request) else { continue };
        let local = SocketAddr::new(received.to, 0);
        let saw = SocketAddr::new(received.from.ip(), 0);
        ledger.record(Proto::Icmp, local, saw);
        let answer = Answer { server: ledger.name().into(), local, saw, peer: local, received: 0 };
        let data = serde_json::to_vec(&answer).unwrap_or_default();
        let reply = Echo { is_request: false, id, data: &data }.encode(address.ip());
        // A lost answer is the client's outcome.
        let _ = send(socket, &reply, received.to, saw);
    }
}

pub(super) fn dial(from: Option<IpAddr>, to: IpAddr, limit: Duration) -> Result<Outcome> {
    let socket = open(to, Proto::Icmp)?;
    let from = SocketAddr::new(from.unwrap_or(any(to, 0).ip()), 0);
    socket.bind(&from.into()).with_context(|| format!("bind to {from}"))?;
    // The identifier tells this process's requests from those of others in the namespace.
    let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let identifier = (std::process::id() as u16).to_be_bytes();
    let id = [identifier[0], identifier[1], sequence[0], sequence[1]];
    let request = Echo { is_request: true, id, data: &[0; 16] }.encode(to);
    let socket = UdpSocket::from(socket);
    match socket.send_to(&request, SocketAddr::new(to, 0)) {
        Ok(_) => (),
        // So the kernel tells whoever sends raw packets that a program or a queue of its own host has dropped one.
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => (),
        Err(error) => return Ok(outcome_of(&error, "send")),
    }
    wait(&socket, to, id, Instant::now() + limit)
}

fn wait(socket: &UdpSocket, to: IpAddr, id: [u8; 4], deadline: Instant) -> Result<Outcome> {
    let mut buffer = [0; 2048];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Outcome::TimedOut);
        }
        socket.set_read_timeout(Some(left))?;
        let (len, source) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) => return Ok(outcome_of(&error, "receive")),
        };
        let echo = Echo::decode(&buffer[..len], to);
        if let Some(reply) = echo.filter(|echo| !echo.is_request && echo.id == id) {
            let answer: Answer = serde_json::from_slice(reply.data).context("the server's answer")?;
            return Ok(Outcome::Answered(Answer { peer: SocketAddr::new(source.ip(), 0), ..answer }));
        }
    }
}

//! SCTP's first two chunks (RFC 9260) on raw sockets: INIT from the client, INIT ACK
//! from the server with its answer where the state cookie goes. Both check the CRC32c.

use super::{
    Answer, Outcome, Proto,
    serve::Ledger,
    socket::{any, open, outcome_of, want_destination},
    udp::{receive, send},
};
use anyhow::{Context, Result};
use proxy_common::crc32c::crc32c;
use socket2::Socket;
use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const COOKIE: u16 = 7;
const COMMON_HEADER: usize = 12;
const INIT_HEADER: usize = 20;

static NEXT_PORT: AtomicU16 = AtomicU16::new(40_000);

/// The fields of an INIT or INIT ACK that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Packet {
    sport: u16,
    dport: u16,
    verification_tag: u32,
    chunk: u8,
    initiate_tag: u32,
    cookie: Vec<u8>,
}

impl Packet {
    fn encode(&self) -> Vec<u8> {
        let cookie = if self.cookie.is_empty() { 0 } else { 4 + self.cookie.len() };
        let mut bytes = Vec::new();
        bytes.extend(self.sport.to_be_bytes());
        bytes.extend(self.dport.to_be_bytes());
        bytes.extend(self.verification_tag.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend([self.chunk, 0]);
        bytes.extend(((INIT_HEADER + cookie) as u16).to_be_bytes());
        bytes.extend(self.initiate_tag.to_be_bytes());
        // Receive window, streams out and in, first sequence number.
        bytes.extend(65_536u32.to_be_bytes());
        bytes.extend([0, 1, 0, 1]);
        bytes.extend(1u32.to_be_bytes());
        if cookie > 0 {
            bytes.extend(COOKIE.to_be_bytes());
            bytes.extend((cookie as u16).to_be_bytes());
            bytes.extend(&self.cookie);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        let sum = crc32c(&bytes).to_le_bytes();
        bytes[8..12].copy_from_slice(&sum);
        bytes
    }

    /// Nothing if it is another kind of packet or its checksum is wrong.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut zeroed = bytes.to_vec();
        let sum = zeroed.get_mut(8..12)?;
        let claimed = u32::from_le_bytes(sum.try_into().ok()?);
        sum.fill(0);
        if crc32c(&zeroed) != claimed {
            return None;
        }
        let chunk = bytes.get(COMMON_HEADER..)?;
        let cookie = chunk.get(INIT_HEADER..).filter(|rest| rest.len() > 4);
        let cookie = cookie.and_then(|rest| rest.get(4..usize::from(number(rest, 2)?)));
        Some(Self {
            sport: number(bytes, 0)?,
            dport: number(bytes, 2)?,
            verification_tag: u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?),
            chunk: *chunk.first()?,
            initiate_tag: u32::from_be_bytes(chunk.get(4..8)?.try_into().ok()?),
            cookie: cookie.unwrap_or_default().to_vec(),
        })
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Raw IPv4 sockets deliver the IP header, IPv6 ones do not.
fn payload(bytes: &[u8], family_of: IpAddr) -> Option<&[u8]> {
    match family_of {
        IpAddr::V4(_) => bytes.get(usize::from(bytes.first()? & 15) * 4..),
        IpAddr::V6(_) => Some(bytes),
    }
}

pub(super) fn listen(address: SocketAddr) -> Result<Socket> {
    let socket = open(address.ip(), Proto::Sctp)?;
    want_destination(&socket, address.ip())?;
    Ok(socket)
}

pub(super) fn serve(socket: &Socket, address: SocketAddr, ledger: &Ledger) {
    let mut buffer = [0; 2048];
    loop {
        let Ok(Some(received)) = receive(socket, &mut buffer) else { continue };
        let packet = payload(&buffer[..received.len], address.ip()).and_then(Packet::decode);
        let Some(init) = packet.filter(|p| p.chunk == INIT && p.dport == address.port()) else { continue };
        if !address.ip().is_unspecified() && address.ip() != received.to {
            continue;
        }
        let local = SocketAddr::new(received.to, init.dport);
        let saw = SocketAddr::new(received.from.ip(), init.sport);
        ledger.record(Proto::Sctp, local, saw);
        let answer = Answer { server: ledger.name().into(), local, saw, peer: local, received: 0 };
        let reply = Packet {
            sport: init.dport,
            dport: init.sport,
            verification_tag: init.initiate_tag,
            chunk: INIT_ACK,
            initiate_tag: 1,
            cookie: serde_json::to_vec(&answer).unwrap_or_default(),
        };
        // A lost answer is the client's outcome.
        let _ = send(socket, &reply.encode(), received.to, SocketAddr::new(received.from.ip(), 0));
    }
}

pub(super) fn dial(
    from: Option<IpAddr>,
    source_port: Option<u16>,
    to: SocketAddr,
    limit: Duration,
) -> Result<Outcome> {
    let socket = open(to.ip(), Proto::Sctp)?;
    let from = SocketAddr::new(from.unwrap_or(any(to.ip(), 0).ip()), 0);
    socket.bind(&from.into()).with_context(|| format!("bind to {from}"))?;
    let sport = source_port.unwrap_or_else(|| 40_000 + NEXT_PORT.fetch_add(1, Ordering::Relaxed) % 20_000);
    let tag = u32::from(sport) << 8 | 1;
    let init = Packet {
        sport,
        dport: to.port(),
        verification_tag: 0,
        chunk: INIT,
        initiate_tag: tag,
        cookie: Vec::new(),
    };
    let socket = UdpSocket::from(socket);
    if let Err(error) = socket.send_to(&init.encode(), SocketAddr::new(to.ip(), 0)) {
        return Ok(outcome_of(&error, "send"));
    }
    wait(&socket, &init, Instant::now() + limit)
}

/// Every raw socket sees every SCTP packet of its namespace: skip those of others.
fn wait(socket: &UdpSocket, init: &Packet, deadline: Instant) -> Result<Outcome> {
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
        let packet = payload(&buffer[..len], source.ip()).and_then(Packet::decode);
        let ours = |p: &Packet| {
            p.chunk == INIT_ACK && p.dport == init.sport && p.verification_tag == init.initiate_tag
        };
        if let Some(ack) = packet.filter(ours) {
            let answer: Answer = serde_json::from_slice(&ack.cookie).context("the server's answer")?;
            return Ok(Outcome::Answered(Answer { peer: SocketAddr::new(source.ip(), ack.sport), ..answer }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_survive_and_damage_shows() {
        let packet = Packet {
            sport: 40_001,
            dport: 7777,
            verification_tag: 9,
            chunk: INIT_ACK,
            initiate_tag: 77,
            cookie: b"answer".to_vec(),
        };
        let mut bytes = packet.encode();
        assert_eq!(Packet::decode(&bytes), Some(packet));
        bytes[1] ^= 1;
        assert_eq!(Packet::decode(&bytes), None);
    }
}

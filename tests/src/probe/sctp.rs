//! SCTP as far as a client sees where its packets go (RFC 9260), on raw sockets: INIT from the client and INIT ACK
//! from the server, then HEARTBEAT and HEARTBEAT ACK. The server's answer stands where the state cookie or the sender's
//! information goes. Both check the CRC32c.

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
const HEARTBEAT: u8 = 4;
const HEARTBEAT_ACK: u8 = 5;
const COMMON_HEADER: usize = 12;
const CHUNK_HEADER: usize = 4;
/// Receive window, streams out and in, first sequence number.
const INIT_FIELDS: [u8; 12] = [0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1];
/// The server's tag. It knows nothing of its associations.
const SERVER_TAG: u32 = 1;

static NEXT_PORT: AtomicU16 = AtomicU16::new(40_000);

/// The fields that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Packet {
    sport: u16,
    dport: u16,
    verification_tag: u32,
    chunk: u8,
    /// The sender's, in INIT and INIT ACK. In HEARTBEAT the client's likewise, for the server to answer with.
    tag: u32,
    /// The state cookie, or information behind the tag.
    data: Vec<u8>,
}

impl Packet {
    fn encode(&self) -> Vec<u8> {
        let chunk = match self.chunk {
            INIT | INIT_ACK => {
                let cookie = if self.data.is_empty() { Vec::new() } else { parameter(7, &self.data) };
                [&self.tag.to_be_bytes()[..], &INIT_FIELDS, &cookie].concat()
            }
            _ => parameter(1, &[&self.tag.to_be_bytes()[..], &self.data].concat()),
        };
        let mut bytes = Vec::new();
        bytes.extend(self.sport.to_be_bytes());
        bytes.extend(self.dport.to_be_bytes());
        bytes.extend(self.verification_tag.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend([self.chunk, 0]);
        bytes.extend(((CHUNK_HEADER + chunk.len()) as u16).to_be_bytes());
        bytes.extend(chunk);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
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
        let chunk = *bytes.get(COMMON_HEADER)?;
        let value = bytes.get(COMMON_HEADER + CHUNK_HEADER..)?;
        let (tag, data) = match chunk {
            INIT | INIT_ACK => {
                let (tag, rest) = value.split_first_chunk()?;
                (tag, rest.get(INIT_FIELDS.len()..).and_then(content).unwrap_or_default())
            }
            HEARTBEAT | HEARTBEAT_ACK => content(value)?.split_first_chunk()?,
            _ => return None,
        };
        Some(Self {
            sport: number(bytes, 0)?,
            dport: number(bytes, 2)?,
            verification_tag: u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?),
            chunk,
            tag: u32::from_be_bytes(*tag),
            data: data.to_vec(),
        })
    }
}

/// A parameter of a chunk, without padding.
fn parameter(kind: u16, content: &[u8]) -> Vec<u8> {
    let len = (4 + content.len()) as u16;
    [&kind.to_be_bytes()[..], &len.to_be_bytes(), content].concat()
}

/// What stands in the parameter that the bytes begin with.
fn content(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(4..usize::from(number(bytes, 2)?))
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
        let Some(asked) = packet.filter(|p| p.dport == address.port()) else { continue };
        let chunk = match asked.chunk {
            INIT => INIT_ACK,
            HEARTBEAT if asked.verification_tag == SERVER_TAG => HEARTBEAT_ACK,
            _ => continue,
        };
        if !address.ip().is_unspecified() && address.ip() != received.to {
            continue;
        }
        let local = SocketAddr::new(received.to, asked.dport);
        let saw = SocketAddr::new(received.from.ip(), asked.sport);
        ledger.record(Proto::Sctp, local, saw);
        let answer = Answer { server: ledger.name().into(), local, saw, peer: local, received: 0 };
        let reply = Packet {
            sport: asked.dport,
            dport: asked.sport,
            verification_tag: asked.tag,
            chunk,
            tag: SERVER_TAG,
            data: serde_json::to_vec(&answer).unwrap_or_default(),
        };
        // A lost answer is the client's outcome.
        let _ = send(socket, &reply.encode(), received.to, SocketAddr::new(received.from.ip(), 0));
    }
}

/// An association, as far as its client knows.
#[derive(Debug)]
pub(super) struct Association {
    socket: UdpSocket,
    sport: u16,
    to: SocketAddr,
    tag: u32,
}

impl Association {
    /// Not opened yet.
    pub(super) fn new(from: Option<IpAddr>, source_port: Option<u16>, to: SocketAddr) -> Result<Self> {
        let socket = open(to.ip(), Proto::Sctp)?;
        let from = SocketAddr::new(from.unwrap_or(any(to.ip(), 0).ip()), 0);
        socket.bind(&from.into()).with_context(|| format!("bind to {from}"))?;
        let sport =
            source_port.unwrap_or_else(|| 40_000 + NEXT_PORT.fetch_add(1, Ordering::Relaxed) % 20_000);
        Ok(Self { socket: socket.into(), sport, to, tag: u32::from(sport) << 8 | 1 })
    }

    /// Asks for an association.
    pub(super) fn init(&self, limit: Duration) -> Outcome {
        self.ask(INIT, 0, INIT_ACK, limit)
    }

    /// Sends something within the association.
    pub(super) fn exchange(&self, limit: Duration) -> Outcome {
        self.ask(HEARTBEAT, SERVER_TAG, HEARTBEAT_ACK, limit)
    }

    fn ask(&self, chunk: u8, verification_tag: u32, answer: u8, limit: Duration) -> Outcome {
        let Self { sport, tag, .. } = *self;
        let packet = Packet { sport, dport: self.to.port(), verification_tag, chunk, tag, data: Vec::new() };
        if let Err(error) = self.socket.send_to(&packet.encode(), SocketAddr::new(self.to.ip(), 0)) {
            return outcome_of(&error, "send");
        }
        let outcome = self.wait(answer, Instant::now() + limit);
        outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
    }

    /// Every raw socket sees every SCTP packet of its namespace: skip those of others.
    fn wait(&self, chunk: u8, deadline: Instant) -> Result<Outcome> {
        let mut buffer = [0; 2048];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Outcome::TimedOut);
            }
            self.socket.set_read_timeout(Some(left))?;
            let (len, source) = match self.socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) => return Ok(outcome_of(&error, "receive")),
            };
            let packet = payload(&buffer[..len], source.ip()).and_then(Packet::decode);
            let ours =
                |p: &Packet| p.chunk == chunk && p.dport == self.sport && p.verification_tag == self.tag;
            if let Some(reply) = packet.filter(ours) {
                let answer: Answer = serde_json::from_slice(&reply.data).context("the server's answer")?;
                let peer = SocketAddr::new(source.ip(), reply.sport);
                return Ok(Outcome::Answered(Answer { peer, ..answer }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_survive_and_damage_shows() {
        for chunk in [INIT_ACK, HEARTBEAT] {
            let (sport, dport, data) = (40_001, 7777, b"answer".to_vec());
            let packet = Packet { sport, dport, verification_tag: 9, chunk, tag: 77, data };
            let mut bytes = packet.encode();
            assert_eq!(Packet::decode(&bytes), Some(packet));
            bytes[1] ^= 1;
            assert_eq!(Packet::decode(&bytes), None);
        }
    }
}

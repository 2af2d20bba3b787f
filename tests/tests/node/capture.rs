//! What passes a network namespace, frame by frame.

use anyhow::{Context, Result};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use std::{
    fmt,
    net::IpAddr,
    os::fd::{AsRawFd, OwnedFd},
};
use tests::netns::Namespace;

/// Longer than any frame of these networks, offloaded ones included.
const MAX: usize = 1 << 17;

/// Gets a copy of every frame of every interface of a namespace.
pub(crate) struct Capture(OwnedFd);

impl Capture {
    pub(crate) fn start(namespace: &Namespace) -> Result<Self> {
        namespace.run(|| {
            let (kind, flags) = (SockType::Raw, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC);
            let all = socket(AddressFamily::Packet, kind, flags, SockProtocol::EthAll);
            Ok(Self(all.context("open a packet socket")?))
        })
    }

    /// The IP packets that passed so far, each once where a bridge shows it at several ports.
    pub(crate) fn packets(&self) -> Vec<Seen> {
        let mut frame = vec![0; MAX];
        let mut packets: Vec<Seen> = Vec::new();
        while let Ok(len) = recv(self.0.as_raw_fd(), &mut frame, MsgFlags::empty()) {
            if let Some(seen) = Seen::read(&frame[..len])
                && !packets.iter().rev().take(4).any(|last| *last == seen)
            {
                packets.push(seen);
            }
        }
        packets
    }
}

/// An IP packet and the frame it came in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    /// Link-layer addresses of the frame.
    pub(crate) from: [u8; 6],
    pub(crate) to: [u8; 6],
    /// From the outermost to the innermost.
    pub(crate) ips: Vec<(IpAddr, IpAddr)>,
    pub(crate) ports: Option<(u16, u16)>,
    pub(crate) len: usize,
    /// Tells packets apart that are alike otherwise.
    transport: Vec<u8>,
}

impl Seen {
    fn read(frame: &[u8]) -> Option<Self> {
        let (to, rest) = frame.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (_, packet) = rest.split_first_chunk::<2>()?;
        let mut seen = Self {
            from: *from,
            to: *to,
            ips: Vec::new(),
            ports: None,
            len: packet.len(),
            transport: Vec::new(),
        };
        seen.unwrap(packet)?;
        Some(seen)
    }

    fn unwrap(&mut self, packet: &[u8]) -> Option<()> {
        let sliced = SlicedPacket::from_ip(packet).ok()?;
        let (source, destination, payload) = match sliced.net? {
            NetSlice::Ipv4(ip) => {
                let header = ip.header();
                (header.source_addr().into(), header.destination_addr().into(), ip.payload().clone())
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header();
                (header.source_addr().into(), header.destination_addr().into(), ip.payload().clone())
            }
            NetSlice::Arp(_) => return None,
        };
        self.ips.push((source, destination));
        if matches!(payload.ip_number.0, 4 | 41) {
            return self.unwrap(payload.payload);
        }
        self.ports = match sliced.transport {
            Some(TransportSlice::Tcp(tcp)) => Some((tcp.source_port(), tcp.destination_port())),
            Some(TransportSlice::Udp(udp)) => Some((udp.source_port(), udp.destination_port())),
            _ => None,
        };
        self.transport = payload.payload.to_vec();
        Some(())
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mac = |mac: &[u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        write!(f, "{} > {}", mac(&self.from), mac(&self.to))?;
        for (source, destination) in &self.ips {
            write!(f, " | {source} > {destination}")?;
        }
        if let Some((source, destination)) = self.ports {
            write!(f, " {source} > {destination}")?;
        }
        write!(f, ", {} bytes", self.len)
    }
}

//! Peers that exchange datagrams of any size, and fragments made by hand.

use anyhow::{Context, Result, ensure};
use etherparse::{IpNumber, Ipv4Header, Ipv6Header, UdpHeader};
use proxy_common::proto;
use socket2::{Domain, Socket, Type};
use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};
use tests::{
    late::{self, soon},
    netns::Namespace,
    topology::cluster::{Cluster, Host, Origin},
};

use crate::raw::{raw, send};

/// Where the backend echoes datagrams of any size.
pub(super) const PORT: u16 = 5355;
/// Bytes of transport in a fragment made here.
const PART: usize = 1400;
/// What has not come by then does not come.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause between copies of a datagram.
const BETWEEN: Duration = Duration::from_secs(1);
/// How often a server looks whether it is to end.
const GLANCE: Duration = Duration::from_millis(100);

/// A server that sends every datagram back: as its stack cuts it, or the last fragment first.
pub(super) struct Echo {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Echo {
    pub(super) fn start(host: &Host, reversed: bool) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for own in [IpAddr::from(host.v4), host.v6.into()] {
            let own = SocketAddr::new(own, PORT);
            let (socket, raw) = (udp(&host.netns, own, GLANCE)?, raw(&host.netns, own.ip())?);
            let stop = Arc::clone(&stop);
            threads.push(thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while !stop.load(Ordering::Relaxed) {
                    let Ok((len, client)) = socket.recv_from(&mut buffer) else { continue };
                    if reversed {
                        let mut parts = fragments(own, client, &buffer[..len]);
                        parts.reverse();
                        send(&raw, client, &parts)?;
                    } else {
                        socket.send_to(&buffer[..len], client)?;
                    }
                }
                Ok(())
            }));
        }
        Ok(Self { stop, threads })
    }

    pub(super) fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).try_for_each(|thread| thread.join().expect("a thread that does not panic"))
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn udp(netns: &Namespace, address: SocketAddr, patience: Duration) -> Result<UdpSocket> {
    netns.run(|| {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
        socket.set_recv_buffer_size(1 << 20)?;
        socket.set_read_timeout(Some(patience))?;
        socket.bind(&address.into())?;
        Ok(socket.into())
    })
}

/// A datagram as IP fragments, first to last.
pub(super) fn fragments(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<Vec<u8>> {
    static ID: AtomicU32 = AtomicU32::new(1);
    let id = ID.fetch_add(1, Ordering::Relaxed);
    let mut datagram = match (from.ip(), to.ip()) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            let ip = Ipv4Header::new(0, 64, IpNumber::UDP, s.octets(), d.octets()).unwrap();
            UdpHeader::with_ipv4_checksum(from.port(), to.port(), &ip, payload)
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => {
            let ip = Ipv6Header { source: s.octets(), destination: d.octets(), ..Ipv6Header::default() };
            UdpHeader::with_ipv6_checksum(from.port(), to.port(), &ip, payload)
        }
        _ => panic!("one family"),
    }
    .unwrap()
    .to_bytes()
    .to_vec();
    datagram.extend(payload);
    let count = datagram.len().div_ceil(PART);
    let parts = datagram.chunks(PART).enumerate();
    parts.map(|(i, part)| fragment(from.ip(), to.ip(), id, i * PART, i + 1 < count, part)).collect()
}

pub(super) fn fragment(from: IpAddr, to: IpAddr, id: u32, offset: usize, more: bool, part: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match (from, to) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            let mut ip =
                Ipv4Header::new(part.len() as u16, 64, IpNumber::UDP, s.octets(), d.octets()).unwrap();
            ip.identification = id as u16;
            ip.dont_fragment = false;
            ip.more_fragments = more;
            ip.fragment_offset = ((offset / 8) as u16).try_into().unwrap();
            ip.write(&mut bytes).unwrap();
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => {
            let ip = Ipv6Header {
                payload_length: 8 + part.len() as u16,
                next_header: IpNumber::IPV6_FRAGMENTATION_HEADER,
                hop_limit: 64,
                source: s.octets(),
                destination: d.octets(),
                ..Ipv6Header::default()
            };
            ip.write(&mut bytes).unwrap();
            // By hand: etherparse puts offset and flag of this header into the wrong bits.
            let field = (offset as u16 | u16::from(more)).to_be_bytes();
            bytes.extend([proto::UDP, 0, field[0], field[1]]);
            bytes.extend(id.to_be_bytes());
        }
        _ => panic!("one family"),
    }
    bytes.extend(part);
    bytes
}

/// A client of the service: the socket that takes the answers, and its own address.
pub(super) struct Caller {
    socket: UdpSocket,
    pub(super) raw: Socket,
    pub(super) own: SocketAddr,
    pub(super) to: SocketAddr,
}

impl Caller {
    pub(super) fn new(cluster: &Cluster, from: Origin, to: &str) -> Result<Self> {
        let to: SocketAddr = to.parse()?;
        let host = cluster.host(from).0;
        let own: IpAddr = if to.is_ipv4() { host.v4.into() } else { host.v6.into() };
        let socket = udp(&host.netns, SocketAddr::new(own, 0), PATIENCE)?;
        Ok(Self { own: socket.local_addr()?, socket, raw: raw(&host.netns, own)?, to })
    }

    /// A datagram of `len` bytes unlike any other.
    pub(super) fn payload(len: usize) -> Vec<u8> {
        static SEED: AtomicU32 = AtomicU32::new(1);
        let seed = SEED.fetch_add(1, Ordering::Relaxed);
        (0..len as u32).map(|i| (i.wrapping_mul(seed.wrapping_mul(2_654_435_761) | 1) >> 11) as u8).collect()
    }

    /// Sends what `order` makes of the fragments of one datagram, and expects it back.
    pub(super) fn exchange(&self, len: usize, order: impl Fn(&mut Vec<Vec<u8>>)) -> Result<()> {
        let payload = Self::payload(len);
        let mut parts = fragments(self.own, self.to, &payload);
        order(&mut parts);
        send(&self.raw, self.to, &parts)?;
        self.expect(&payload)
    }

    /// The same with the fragments its own stack makes.
    pub(super) fn exchange_whole(&self, len: usize) -> Result<()> {
        let payload = Self::payload(len);
        self.socket.send_to(&payload, self.to)?;
        self.expect(&payload)
    }

    /// The same where the first datagrams may be lost: sends it every second until it comes back.
    pub(super) fn repeat_whole(&self, len: usize) -> Result<()> {
        let payload = Self::payload(len);
        self.socket.set_read_timeout(Some(BETWEEN))?;
        soon(|| {
            self.socket.send_to(&payload, self.to)?;
            self.expect(&payload)
        })
    }

    pub(super) fn expect(&self, payload: &[u8]) -> Result<()> {
        let mut buffer = vec![0; 1 << 16];
        let what = || format!("{} bytes from {} to {}", payload.len(), self.own, self.to);
        let (len, from) = self.socket.recv_from(&mut buffer).map_err(late::of_socket).with_context(what)?;
        ensure!(from == self.to && &buffer[..len] == payload, "{}: {len} bytes from {from}", what());
        Ok(())
    }
}

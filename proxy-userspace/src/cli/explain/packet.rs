//! The packet that is sent on trial: the first of a connection.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail};
use etherparse::{IpNumber, PacketBuilder, SlicedPacket, TransportSlice};
use proxy_common::proto;

/// Link-layer address of a sender that nobody asks for.
const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const HOPS: u8 = 64;
/// INIT (RFC 9260 §3.3.2) with a verification tag of 0 in front, ports apart.
const SCTP_INIT: [u8; 28] = [
    0, 0, 0, 0, 0, 0, 0, 0, // tag, checksum
    1, 0, 0, 20, // INIT, its length
    0, 0, 0, 1, 0, 1, 0, 0, // initiate tag, window
    0, 1, 0, 1, 0, 0, 0, 1, // streams, initial number
];

/// A SYN, a datagram or an INIT in an Ethernet frame to `to_mac`.
pub(super) fn build(from: SocketAddr, to: SocketAddr, protocol: u8, to_mac: [u8; 6]) -> Result<Vec<u8>> {
    let frame = PacketBuilder::ethernet2(SENDER, to_mac);
    let packet = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => frame.ipv4(from.octets(), to.octets(), HOPS),
        (IpAddr::V6(from), IpAddr::V6(to)) => frame.ipv6(from.octets(), to.octets(), HOPS),
        (from, to) => bail!("{from} and {to} are of different families"),
    };
    let mut bytes = Vec::new();
    match protocol {
        proto::TCP => packet.tcp(from.port(), to.port(), 1, 65_535).syn().write(&mut bytes, &[])?,
        proto::UDP => packet.udp(from.port(), to.port()).write(&mut bytes, b"shunt explain")?,
        _ => {
            let ports = [from.port(), to.port()].map(u16::to_be_bytes).concat();
            packet.write(&mut bytes, IpNumber::SCTP, &[&ports[..], &SCTP_INIT].concat())?;
        }
    }
    Ok(bytes)
}

/// Source and destination of a frame, if it is one of the transport protocols of services.
pub(super) fn ends(frame: &[u8]) -> Result<(SocketAddr, SocketAddr)> {
    let packet = SlicedPacket::from_ethernet(frame).context("read the packet after the program")?;
    let net = packet.net.context("a packet without an IP header")?;
    let (from, to): (IpAddr, IpAddr) = match &net {
        etherparse::NetSlice::Ipv4(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        etherparse::NetSlice::Ipv6(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        other => bail!("no IP packet: {other:?}"),
    };
    let (sport, dport) = match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => (tcp.source_port(), tcp.destination_port()),
        Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
        _ => {
            let payload = net.ip_payload_ref().context("an IP packet without a payload")?.payload;
            let port = |at: usize| payload.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
            (port(0).context("no ports")?, port(2).context("no ports")?)
        }
    };
    Ok((SocketAddr::new(from, sport), SocketAddr::new(to, dport)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_read() {
        for (from, to) in [("10.0.0.1:40000", "10.96.0.1:53"), ("[fd00::1]:40000", "[fd00:96::1]:53")] {
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            for protocol in [proto::TCP, proto::UDP, proto::SCTP] {
                let frame = build(from, to, protocol, [2; 6]).unwrap();
                assert_eq!(ends(&frame).unwrap(), (from, to), "{protocol}");
            }
        }
    }
}

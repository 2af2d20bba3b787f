//! Frames, built and checked by an independent library.

use std::net::IpAddr;

use etherparse::{
    Ethernet2Header, IpNumber, Ipv4Header, Ipv6Header, NetHeaders, PacketHeaders, PayloadSlice, TcpHeader,
    TransportHeader, UdpHeader,
};
use proxy_common::{crc32c::crc32c, proto};

/// Source, destination and protocol of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) proto: u8,
    pub(crate) src: (IpAddr, u16),
    pub(crate) dst: (IpAddr, u16),
}

impl Flow {
    pub(crate) fn tcp(src: (IpAddr, u16), dst: (IpAddr, u16)) -> Self {
        Self { proto: proto::TCP, src, dst }
    }

    pub(crate) fn udp(src: (IpAddr, u16), dst: (IpAddr, u16)) -> Self {
        Self { proto: proto::UDP, src, dst }
    }

    pub(crate) fn sctp(src: (IpAddr, u16), dst: (IpAddr, u16)) -> Self {
        Self { proto: proto::SCTP, src, dst }
    }

    pub(crate) fn reversed(self) -> Self {
        Self { proto: self.proto, src: self.dst, dst: self.src }
    }
}

pub(crate) const SYN: u8 = 0x02;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const FIN: u8 = 0x01;
pub(crate) const RST: u8 = 0x04;

/// A TCP segment with these flags, or an SCTP packet with the chunk that stands for them, or a
/// datagram, with a short payload where one may be.
pub(crate) fn frame(flow: Flow, tcp_flags: u8) -> Vec<u8> {
    let payload: &[u8] = if tcp_flags & SYN != 0 { b"" } else { b"hello" };
    with_ip(flow, &transport(flow, tcp_flags, payload))
}

/// The transport header with a right checksum, and the payload.
pub(crate) fn transport(flow: Flow, tcp_flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match flow.proto {
        proto::TCP => {
            let mut tcp = TcpHeader::new(flow.src.1, flow.dst.1, 1000, 64000);
            tcp.acknowledgment_number = if tcp_flags & ACK != 0 { 77 } else { 0 };
            (tcp.syn, tcp.ack, tcp.fin) = (tcp_flags & SYN != 0, tcp_flags & ACK != 0, tcp_flags & FIN != 0);
            tcp.rst = tcp_flags & RST != 0;
            tcp.checksum = match (flow.src.0, flow.dst.0) {
                (IpAddr::V4(s), IpAddr::V4(d)) => tcp.calc_checksum_ipv4_raw(s.octets(), d.octets(), payload),
                (IpAddr::V6(s), IpAddr::V6(d)) => tcp.calc_checksum_ipv6_raw(s.octets(), d.octets(), payload),
                _ => panic!("one family"),
            }
            .expect("short payload");
            tcp.write(&mut bytes).expect("to memory");
        }
        proto::UDP => {
            let udp = match (flow.src.0, flow.dst.0) {
                (IpAddr::V4(s), IpAddr::V4(d)) => UdpHeader::with_ipv4_checksum(
                    flow.src.1,
                    flow.dst.1,
                    &Ipv4Header::new(0, 64, IpNumber::UDP, s.octets(), d.octets()).expect("no payload"),
                    payload,
                ),
                (IpAddr::V6(s), IpAddr::V6(d)) => {
                    let ip =
                        Ipv6Header { source: s.octets(), destination: d.octets(), ..Ipv6Header::default() };
                    UdpHeader::with_ipv6_checksum(flow.src.1, flow.dst.1, &ip, payload)
                }
                _ => panic!("one family"),
            };
            udp.expect("short payload").write(&mut bytes).expect("to memory");
        }
        proto::SCTP => {
            bytes.extend(flow.src.1.to_be_bytes());
            bytes.extend(flow.dst.1.to_be_bytes());
            bytes.extend([0, 0, 0, 9, 0, 0, 0, 0]);
            // INIT, INIT ACK and DATA (RFC 9260 §3.2).
            let chunk = match tcp_flags & (SYN | ACK) {
                SYN => 1,
                flags if flags & SYN != 0 => 2,
                _ => 0,
            };
            bytes.extend([chunk, 0, 0, 4]);
            bytes.extend(payload);
            let sum = crc32c(&bytes);
            bytes[8..12].copy_from_slice(&sum.to_le_bytes());
            return bytes;
        }
        _ => panic!("no such transport"),
    }
    bytes.extend(payload);
    bytes
}

/// Ethernet and IP header before `transport`.
pub(crate) fn with_ip(flow: Flow, transport: &[u8]) -> Vec<u8> {
    let mut bytes = ethernet(flow.src.0);
    match (flow.src.0, flow.dst.0) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            Ipv4Header::new(transport.len() as u16, 64, IpNumber(flow.proto), s.octets(), d.octets())
                .expect("short payload")
                .write(&mut bytes)
                .expect("to memory");
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => {
            ipv6(flow, s.octets(), d.octets(), transport.len()).write(&mut bytes).expect("to memory");
        }
        _ => panic!("one family"),
    }
    bytes.extend(transport);
    bytes
}

pub(crate) fn ipv6(flow: Flow, source: [u8; 16], destination: [u8; 16], payload: usize) -> Ipv6Header {
    Ipv6Header {
        payload_length: payload as u16,
        next_header: IpNumber(flow.proto),
        hop_limit: 64,
        source,
        destination,
        ..Ipv6Header::default()
    }
}

pub(crate) fn ethernet(family_of: IpAddr) -> Vec<u8> {
    let ether_type =
        if family_of.is_ipv4() { etherparse::EtherType::IPV4 } else { etherparse::EtherType::IPV6 };
    Ethernet2Header { source: [2, 0, 0, 0, 0, 1], destination: [2, 0, 0, 0, 0, 2], ether_type }
        .to_bytes()
        .to_vec()
}

/// The flow of a frame, all of whose checksums must be right.
pub(crate) fn checked(frame: &[u8]) -> Flow {
    let headers = PacketHeaders::from_ethernet_slice(frame).expect("a well-formed frame");
    let (src, dst) = addresses(&headers);
    if let Some(NetHeaders::Ipv4(ip, _)) = &headers.net {
        assert_eq!(ip.header_checksum, ip.calc_header_checksum(), "IPv4 header checksum");
    }
    let payload = headers.payload.slice();
    match &headers.transport {
        Some(TransportHeader::Tcp(tcp)) => {
            let sum = match (src, dst) {
                (IpAddr::V4(s), IpAddr::V4(d)) => tcp.calc_checksum_ipv4_raw(s.octets(), d.octets(), payload),
                (IpAddr::V6(s), IpAddr::V6(d)) => tcp.calc_checksum_ipv6_raw(s.octets(), d.octets(), payload),
                _ => panic!("one family"),
            };
            assert_eq!(Ok(tcp.checksum), sum, "TCP checksum");
            Flow::tcp((src, tcp.source_port), (dst, tcp.destination_port))
        }
        Some(TransportHeader::Udp(udp)) => {
            let sum = match (src, dst) {
                (IpAddr::V4(s), IpAddr::V4(d)) => udp.calc_checksum_ipv4_raw(s.octets(), d.octets(), payload),
                (IpAddr::V6(s), IpAddr::V6(d)) => udp.calc_checksum_ipv6_raw(s.octets(), d.octets(), payload),
                _ => panic!("one family"),
            };
            // Zero stands for "none" over IPv4, and a sum of zero is written as 0xffff.
            if udp.checksum != 0 || src.is_ipv6() {
                assert_eq!(Ok(udp.checksum), sum.map(|s| if s == 0 { 0xffff } else { s }), "UDP checksum");
            }
            Flow::udp((src, udp.source_port), (dst, udp.destination_port))
        }
        None => sctp(src, dst, &headers.payload),
        other => panic!("unexpected transport {other:?}"),
    }
}

pub(crate) fn addresses(headers: &PacketHeaders<'_>) -> (IpAddr, IpAddr) {
    match headers.net.as_ref().expect("an IP header") {
        NetHeaders::Ipv4(ip, _) => (ip.source.into(), ip.destination.into()),
        NetHeaders::Ipv6(ip, _) => (ip.source.into(), ip.destination.into()),
        other => panic!("unexpected {other:?}"),
    }
}

fn sctp(src: IpAddr, dst: IpAddr, payload: &PayloadSlice<'_>) -> Flow {
    let bytes = payload.slice();
    let mut zeroed = bytes.to_vec();
    zeroed[8..12].fill(0);
    assert_eq!(bytes[8..12], crc32c(&zeroed).to_le_bytes(), "SCTP checksum");
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    Flow::sctp((src, port(0)), (dst, port(2)))
}

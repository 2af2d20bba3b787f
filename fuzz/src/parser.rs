//! What must hold of the parser for any bytes. It is compared with an independent parser
//! (etherparse), and with itself behind link-layer headers of other lengths.

use std::{fmt::Debug, net::IpAddr};

use etherparse::{IpNumber, IpSlice, TcpSlice, UdpSlice};
use proxy_common::{
    Ip4, Ip6,
    packet::{MAX_TRANSPORT, Slice, Transport, Wire, parse, quote},
    proto,
};

/// What the parser says of an IP packet. Offsets count from the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    src: IpAddr,
    dst: IpAddr,
    proto: u8,
    more_fragments: bool,
    fragment_offset: u16,
    fragment_id: u32,
    offset: usize,
    len: usize,
    transport: Option<Ports>,
}

/// Source and destination port, and TCP's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ports(u16, u16, u8);

/// Panics if the parser errs on `packet`, which begins with an IP header if it is one.
pub(crate) fn check(packet: &[u8]) {
    let reading = match packet.first().map(|byte| byte >> 4) {
        Some(4) => check_links::<Ip4>(packet),
        Some(6) => check_links::<Ip6>(packet),
        _ => None,
    };
    assert!(!is_version(packet, 4) || read::<Ip6, 0>(packet).is_none(), "IPv4 read as IPv6");
    assert!(!is_version(packet, 6) || read::<Ip4, 0>(packet).is_none(), "IPv6 read as IPv4");
    if let Some(reading) = reading {
        check_bounds(packet, &reading);
    }
    // An error of the other parser says nothing: it is stricter about the order of extension headers.
    if let Ok(other) = IpSlice::from_slice(packet) {
        compare(packet, reading, &other);
    }
}

fn is_version(packet: &[u8], version: u8) -> bool {
    packet.first().is_some_and(|byte| byte >> 4 == version)
}

/// One packet means the same on every kind of device, unless its headers reach so far that
/// the link-layer header moves them out of reach.
fn check_links<A: Wire + Into<IpAddr> + Debug>(packet: &[u8]) -> Option<Reading> {
    let bare = read::<A, 0>(packet);
    for (link, framed) in [(14, read::<A, 14>(packet)), (18, read::<A, 18>(packet))] {
        let in_reach = bare.is_none_or(|bare| bare.offset + link <= MAX_TRANSPORT);
        assert!(framed == bare || (!in_reach && framed.is_none()), "{link}: {framed:?} and bare {bare:?}");
    }
    bare
}

fn read<A: Wire + Into<IpAddr> + Debug, const L2_LEN: usize>(packet: &[u8]) -> Option<Reading> {
    // No byte of the link-layer header passes for one of a small header.
    let frame = [&[0xa5; L2_LEN], packet].concat();
    let bytes = Slice::<L2_LEN>(&frame);
    let found = A::transport(&bytes)?;
    let parsed = parse(&bytes, found);
    if let Some(parsed) = &parsed {
        assert!(parsed.tuple.src == found.src && parsed.tuple.dst == found.dst);
        assert_eq!(parsed.tuple.proto, found.proto);
    }
    check_quote::<A, L2_LEN>(&bytes, &found);
    Some(Reading {
        src: found.src.into(),
        dst: found.dst.into(),
        proto: found.proto,
        more_fragments: found.more_fragments,
        fragment_offset: found.fragment_offset,
        fragment_id: found.fragment_id,
        offset: found.offset.checked_sub(L2_LEN).expect("a transport header within the link-layer header"),
        len: found.len as usize,
        transport: parsed.map(|p| Ports(p.tuple.sport, p.tuple.dport, p.tcp_flags)),
    })
}

/// What an error quotes lies within it, and its headers follow each other.
fn check_quote<A: Wire + Debug, const L2_LEN: usize>(bytes: &Slice<'_, L2_LEN>, icmp: &Transport<A>) {
    if icmp.is_fragment() {
        return;
    }
    let Some(quoted) = quote(bytes, icmp) else { return };
    let end = icmp.offset + icmp.len as usize;
    assert_eq!(quoted.ip, icmp.offset + 8, "{quoted:?}");
    let header = if A::VERSION == 4 { 20 } else { 40 };
    assert!(quoted.transport >= quoted.ip + header && quoted.transport + 4 <= end, "{quoted:?}");
    assert!(quoted.checksum == 0 || quoted.checksum + 2 <= end, "{quoted:?}");
    let port = |at: usize| u16::from_be_bytes([bytes.0[at], bytes.0[at + 1]]);
    let ports = (port(quoted.transport), port(quoted.transport + 2));
    assert_eq!((quoted.tuple.sport, quoted.tuple.dport), ports, "{quoted:?}");
}

fn check_bounds(packet: &[u8], reading: &Reading) {
    let header = if is_version(packet, 4) { 20 } else { 40 };
    assert!(reading.offset >= header, "{reading:?}");
    assert!(reading.offset + reading.len <= packet.len(), "{reading:?} of {} bytes", packet.len());
    if let Some(Ports(src, dst, _)) = reading.transport {
        assert_eq!(reading.fragment_offset, 0, "only a first fragment has ports");
        let least = match reading.proto {
            proto::TCP => 20,
            proto::UDP => 8,
            proto::SCTP => 12,
            other => panic!("ports of protocol {other}"),
        };
        assert!(reading.len >= least, "{reading:?}");
        let bytes = &packet[reading.offset..];
        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        assert_eq!((src, dst), (port(0), port(2)));
    }
}

fn compare(packet: &[u8], reading: Option<Reading>, other: &IpSlice<'_>) {
    let payload = other.payload();
    let offset = payload.payload.as_ptr() as usize - packet.as_ptr() as usize;
    let Some(reading) = reading else {
        assert!(!must_be_understood(packet, offset, other), "not understood, but is {other:?}");
        return;
    };
    assert_eq!((reading.src, reading.dst), (other.source_addr(), other.destination_addr()));
    let fragment = reading.more_fragments || reading.fragment_offset != 0;
    // What follows these headers is read by the other parser, but not by ours.
    const NOT_FOLLOWED: [u8; 5] = [0, 43, 44, 51, 60];
    if reading.fragment_offset != 0 || NOT_FOLLOWED.contains(&reading.proto) {
        return;
    }
    // The other parser takes the reserved bits of IPv6's fragment header for a part of the offset.
    assert!(!fragment || payload.fragmented, "{reading:?} and {other:?}");
    assert_eq!((IpNumber(reading.proto), reading.offset), (payload.ip_number, offset), "{other:?}");
    assert_eq!(reading.len, payload.payload.len(), "{other:?}");
    if fragment {
        return;
    }
    let transport = match reading.proto {
        proto::TCP => TcpSlice::from_slice(payload.payload)
            .ok()
            .map(|tcp| Ports(tcp.source_port(), tcp.destination_port(), payload.payload[13])),
        proto::UDP => UdpSlice::from_slice(payload.payload)
            .ok()
            // Length zero is that of a jumbogram (RFC 2675), which we leave alone.
            .filter(|udp| udp.length() >= 8)
            .map(|udp| Ports(udp.source_port(), udp.destination_port(), 0)),
        _ => return,
    };
    assert_eq!(reading.transport, transport, "{other:?}");
}

/// Whether a packet that another parser reads is one that ours must not leave aside.
fn must_be_understood(packet: &[u8], offset: usize, other: &IpSlice<'_>) -> bool {
    match other {
        IpSlice::Ipv4(_) => true,
        // Without a payload length it is a jumbogram, or empty.
        IpSlice::Ipv6(ip) => {
            let is_jumbo = ip.header().payload_length() == 0;
            // A chain of six headers or fewer in reach.
            !is_jumbo && offset <= MAX_TRANSPORT && packet.len() >= offset && extensions(packet) <= 6
        }
    }
}

/// How many extension headers follow the IPv6 header. One that we do not follow ends the chain.
fn extensions(packet: &[u8]) -> usize {
    let (mut next, mut at, mut count) = (packet[6], 40, 0);
    while let (0 | 43 | 44 | 60, Some(header)) = (next, packet.get(at..at + 2)) {
        at += if next == 44 { 8 } else { 8 + usize::from(header[1]) * 8 };
        next = header[0];
        count += 1;
    }
    count
}

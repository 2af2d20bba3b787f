//! Header layouts. Integers in here are in network order, as on the wire.

use crate::{Ip4, Ip6};

/// A type that any bytes of a packet may be read as.
///
/// # Safety
/// `repr(C)` integers and byte arrays without padding.
pub unsafe trait Header: Copy {}

macro_rules! headers {
    ($($(#[$doc:meta])+ struct $name:ident { $($field:ident: $type:ty),+ $(,)? } = $size:literal;)+) => {$(
        $(#[$doc])+
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $type),+ }

        const _: () = assert!(size_of::<$name>() == $size);

        // SAFETY: integers and byte arrays, no padding: the size is the sum of the fields.
        unsafe impl Header for $name {}
    )+};
}

headers! {
    /// Ethernet destination and source.
    struct Macs { dst: [u8; 6], src: [u8; 6] } = 12;

    /// IPv4 without options (RFC 791).
    struct Ipv4 {
        version_ihl: u8,
        tos: u8,
        total_len: u16,
        id: u16,
        fragment: u16,
        ttl: u8,
        proto: u8,
        checksum: u16,
        src: Ip4,
        dst: Ip4,
    } = 20;

    /// IPv6 without extension headers (RFC 8200).
    struct Ipv6 {
        version_class_label: u32,
        payload_len: u16,
        next_header: u8,
        hop_limit: u8,
        src: Ip6,
        dst: Ip6,
    } = 40;

    /// VLAN tag after the Ethernet addresses and its EtherType (IEEE 802.1Q).
    struct Vlan { tci: u16, ether_type: u16 } = 4;

    /// IPv6 fragment header (RFC 8200 §4.5).
    struct Fragment6 { next_header: u8, reserved: u8, offset_flags: u16, id: u32 } = 8;

    /// The start of most IPv6 extension headers.
    struct Extension { next_header: u8, len: u8 } = 2;

    /// An IPv6 extension header of the shortest length.
    struct ShortExtension { words: [u32; 2] } = 8;

    /// Source and destination port, the start of all three transports.
    struct Ports { src: u16, dst: u16 } = 4;

    /// TCP without options (RFC 9293).
    struct Tcp {
        ports: Ports,
        seq: u32,
        ack: u32,
        offset: u8,
        flags: u8,
        window: u16,
        checksum: u16,
        urgent: u16,
    } = 20;

    /// UDP (RFC 768).
    struct Udp { ports: Ports, len: u16, checksum: u16 } = 8;

    /// SCTP common header (RFC 9260).
    struct Sctp { ports: Ports, tag: u32, checksum: u32 } = 12;

    /// SCTP common header and the start of the first chunk (RFC 9260 §3).
    struct SctpChunk { sctp: Sctp, kind: u8, flags: u8, len: u16 } = 16;

    /// ICMP and ICMPv6 up to the quoted packet (RFC 792, RFC 4443).
    struct Icmp { kind: u8, code: u8, checksum: u16, unused: u32 } = 8;

    /// IPv4 and ICMP header of an answer.
    struct Icmp4Answer { ip: Ipv4, icmp: Icmp } = 28;

    /// IPv6 and ICMPv6 header of an answer.
    struct Icmp6Answer { ip: Ipv6, icmp: Icmp } = 48;

    /// An IPv4 header from its TTL on.
    struct Ipv4Rest { ttl: u8, proto: u8, checksum: u16, src: Ip4, dst: Ip4 } = 12;

    /// Both addresses of an IPv6 header.
    struct Addrs6 { src: Ip6, dst: Ip6 } = 32;
}

// SAFETY: integers.
unsafe impl Header for u16 {}
// SAFETY: integers.
unsafe impl Header for u32 {}

/// TCP flags (RFC 9293 §3.1).
pub mod tcp_flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Opens a connection.
    pub const SYN: u8 = 0x02;
    /// Resets the connection.
    pub const RST: u8 = 0x04;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 0x10;
}

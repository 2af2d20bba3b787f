//! IANA protocol numbers of what is translated, and how to name them.

/// Transmission Control Protocol (RFC 9293).
pub const TCP: u8 = 6;
/// User Datagram Protocol (RFC 768).
pub const UDP: u8 = 17;
/// Stream Control Transmission Protocol (RFC 9260).
pub const SCTP: u8 = 132;
/// An IPv4 packet inside another (RFC 2003).
pub const IPIP: u8 = 4;
/// An IPv6 packet inside another (RFC 2473).
pub const IPV6: u8 = 41;
/// Internet Control Message Protocol (RFC 792).
pub const ICMP: u8 = 1;
/// ICMP for IPv6 (RFC 4443).
pub const ICMPV6: u8 = 58;

/// The name Kubernetes uses for a protocol number, if it is one of the three it knows.
pub fn name(proto: u8) -> Option<&'static str> {
    match proto {
        TCP => Some("TCP"),
        UDP => Some("UDP"),
        SCTP => Some("SCTP"),
        _ => None,
    }
}

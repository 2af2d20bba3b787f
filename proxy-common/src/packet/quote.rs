//! ICMP error → the packet it is about, as far as it is quoted.

use super::{
    Bytes, MAX_OFFSET, Transport, Wire, bounded,
    headers::{Icmp, Ports},
};
use crate::{Tuple, proto};

/// The packet that an ICMP error quotes: the flow it is about, seen from its sender.
#[derive(Clone, Copy, Debug)]
pub struct Quote<A> {
    /// Addresses, ports, protocol.
    pub tuple: Tuple<A>,
    /// Where its IP header is.
    pub ip: usize,
    /// Where its transport header is.
    pub transport: usize,
    /// Where its transport checksum is; 0 if it has none that covers addresses, or the quote ends before.
    pub checksum: usize,
}

/// Reads the quote of an ICMP error. Nothing if the quoted packet is none of a protocol we translate,
/// or is cut off before its ports. Its lengths are not looked at: it is cut off as a rule.
#[inline(always)]
pub fn quote<P: Bytes, A: Wire>(packet: &P, icmp: &Transport<A>) -> Option<Quote<A>> {
    let end = icmp.offset + icmp.len as usize;
    let at = icmp.offset + size_of::<Icmp>();
    if at > MAX_OFFSET {
        return None;
    }
    let at = bounded(at);
    let ip = A::ip_header(packet, at)?;
    let translated = matches!(ip.proto, proto::TCP | proto::UDP | proto::SCTP);
    if !translated || ip.fragment_offset != 0 {
        return None;
    }
    let transport = bounded(at + ip.len);
    // What follows is padding of the link, if anything.
    if transport + size_of::<Ports>() > end {
        return None;
    }
    let ports = packet.read::<Ports>(transport)?;
    let checksum = match ip.proto {
        proto::TCP => transport + 16,
        proto::UDP => transport + 6,
        _ => 0,
    };
    Some(Quote {
        tuple: Tuple {
            src: ip.src,
            dst: ip.dst,
            sport: u16::from_be(ports.src),
            dport: u16::from_be(ports.dst),
            proto: ip.proto,
        },
        ip: at,
        transport,
        checksum: if checksum + 2 <= end { checksum } else { 0 },
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Slice, headers};
    use super::*;
    use crate::Ip4;
    use std::vec::Vec;

    const OUTER: usize = 20;

    /// "Port unreachable" that quotes `options` of the IP header and `transport`.
    fn error(proto: u8, fragment: u16, options: usize, transport: &[u8]) -> Vec<u8> {
        let ip = |len: usize, proto, options: usize| {
            let mut header = [0u8; 60];
            header[0] = 0x45 + (options / 4) as u8;
            header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            header[9] = proto;
            header[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
            header[..20 + options].to_vec()
        };
        let mut quoted = ip(1500, proto, options);
        quoted[6..8].copy_from_slice(&fragment.to_be_bytes());
        quoted.extend(transport);
        let mut packet = ip(OUTER + 8 + quoted.len(), proto::ICMP, 0);
        packet.extend([3, 3, 0, 0, 0, 0, 0, 0]);
        packet.extend(quoted);
        packet
    }

    fn read(packet: &[u8]) -> Option<Quote<Ip4>> {
        let packet = Slice::<0>(packet);
        quote(&packet, &Ip4::transport(&packet)?)
    }

    #[test]
    fn as_far_as_it_goes() {
        let tcp = [0x30, 0x39, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x10, 0, 0, 0xab, 0xcd];
        let whole = read(&error(proto::TCP, 0, 0, &tcp)).expect("a quote");
        assert_eq!((whole.tuple.sport, whole.tuple.dport, whole.tuple.proto), (12345, 80, proto::TCP));
        assert_eq!((whole.ip, whole.transport, whole.checksum), (28, 48, 64));
        let least = read(&error(proto::TCP, 0, 0, &tcp[..8])).expect("eight bytes (RFC 792)");
        assert_eq!((least.tuple.sport, least.checksum), (12345, 0));
        let mut padded = error(proto::TCP, 0, 0, &tcp[..8]);
        padded.extend([0; 40]);
        assert_eq!(read(&padded).expect("a quote").checksum, 0, "the link's padding is no quote");
        assert!(read(&error(proto::TCP, 0, 0, &tcp[..3])).is_none());
        assert_eq!(read(&error(proto::UDP, 0, 40, &tcp[..8])).expect("options").transport, 88);
        assert_eq!(read(&error(proto::SCTP, 0, 0, &tcp[..12])).expect("SCTP").checksum, 0);
    }

    #[test]
    fn what_names_no_flow() {
        let ports = [0u8; size_of::<headers::Udp>()];
        assert!(read(&error(proto::ICMP, 0, 0, &ports)).is_none());
        assert!(read(&error(proto::UDP, 0x2000, 0, &ports)).is_some(), "a first fragment has ports");
        assert!(read(&error(proto::UDP, 0x0010, 0, &ports)).is_none());
    }
}

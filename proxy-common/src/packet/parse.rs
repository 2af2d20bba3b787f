//! Packet → tuple. What is not understood wholly is not ours: it goes on as it came.

use super::{
    Bytes, Transport,
    headers::{
        Ports, Sctp, SctpChunk, Tcp, Udp,
        tcp_flags::{ACK, SYN},
    },
};
use crate::{Tuple, proto};

/// A packet of a protocol we translate, with sane lengths.
#[derive(Clone, Copy, Debug)]
pub struct Parsed<A> {
    /// Addresses, ports, protocol.
    pub tuple: Tuple<A>,
    /// Where the transport header is.
    pub transport: Transport<A>,
    /// Zero for UDP. For SCTP, `SYN` where a packet starts with INIT (RFC 9260 §5.1), else `ACK`.
    pub tcp_flags: u8,
}

impl<A> Parsed<A> {
    /// True if a connection may begin with it: a TCP segment with SYN and without ACK (RFC 9293 §3.5), an
    /// SCTP packet that starts with INIT, any datagram.
    #[inline(always)]
    pub fn opens(&self) -> bool {
        self.tuple.proto == proto::UDP || self.tcp_flags & (SYN | ACK) == SYN
    }
}

/// Type of the SCTP chunk INIT, which is alone in its packet (RFC 9260 §3.2, §4.3).
const INIT: u8 = 1;

/// Reads the transport header. Nothing for another protocol, for a header that is cut off or
/// contradicts its length, and for a fragment other than the first, which has none.
#[inline(always)]
pub fn parse<P: Bytes, A: Copy>(packet: &P, transport: Transport<A>) -> Option<Parsed<A>> {
    let (ports, tcp_flags) = read_header(packet, &transport)?;
    Some(Parsed { tuple: tuple(&transport, &ports), transport, tcp_flags })
}

/// [`parse`], into `parsed`.
#[inline(always)]
pub fn parse_into<P: Bytes, A: Copy>(
    packet: &P,
    transport: &Transport<A>,
    parsed: &mut Parsed<A>,
) -> Option<()> {
    let (ports, tcp_flags) = read_header(packet, transport)?;
    parsed.tuple = tuple(transport, &ports);
    parsed.transport = *transport;
    parsed.tcp_flags = tcp_flags;
    Some(())
}

/// The ports, and [`Parsed::tcp_flags`].
#[inline(always)]
fn read_header<P: Bytes, A>(packet: &P, transport: &Transport<A>) -> Option<(Ports, u8)> {
    if transport.fragment_offset != 0 {
        return None;
    }
    match transport.proto {
        proto::TCP => {
            let tcp = packet.read::<Tcp>(transport.offset)?;
            let header_len = u32::from(tcp.offset >> 4) * 4;
            if header_len < 20 || header_len > transport.len {
                return None;
            }
            Some((tcp.ports, tcp.flags))
        }
        proto::UDP => {
            let udp = packet.read::<Udp>(transport.offset)?;
            let len = u32::from(u16::from_be(udp.len));
            // A first fragment has the length of the whole datagram.
            let too_long = len > transport.len && !transport.more_fragments;
            if transport.len < size_of::<Udp>() as u32 || !packet.is_gso() && (len < 8 || too_long) {
                return None;
            }
            Some((udp.ports, 0))
        }
        proto::SCTP => {
            if transport.len < size_of::<Sctp>() as u32 {
                return None;
            }
            let ports = packet.read::<Ports>(transport.offset)?;
            let has_chunk = transport.len >= size_of::<SctpChunk>() as u32;
            let chunk = if has_chunk { packet.read::<SctpChunk>(transport.offset) } else { None };
            Some((ports, if chunk.is_some_and(|chunk| chunk.kind == INIT) { SYN } else { ACK }))
        }
        _ => None,
    }
}

#[inline(always)]
fn tuple<A: Copy>(transport: &Transport<A>, ports: &Ports) -> Tuple<A> {
    Tuple {
        src: transport.src,
        dst: transport.dst,
        sport: u16::from_be(ports.src),
        dport: u16::from_be(ports.dst),
        proto: transport.proto,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Slice, Wire};
    use super::*;
    use crate::{Ip4, Ip6};
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    fn read<A: Wire>(bytes: &[u8]) -> Option<Parsed<A>> {
        let packet = Slice::<0>(bytes);
        parse(&packet, A::transport(&packet)?)
    }

    /// An IPv6 packet: extension headers as (type, length in eights beyond the first), then UDP.
    fn v6(extensions: &[(u8, u8)]) -> Vec<u8> {
        let kinds: Vec<u8> = extensions.iter().map(|e| e.0).chain([proto::UDP]).collect();
        let mut payload = Vec::new();
        for (i, (_, len)) in extensions.iter().enumerate() {
            let mut header = vec![0; 8 + usize::from(*len) * 8];
            (header[0], header[1]) = (kinds[i + 1], *len);
            payload.extend(header);
        }
        payload.extend([0x12, 0x34, 0, 53, 0, 8, 0, 0]);
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend((payload.len() as u16).to_be_bytes());
        packet.extend([kinds[0], 64]);
        packet.extend([1; 32]);
        packet.extend(payload);
        packet
    }

    #[test]
    fn extension_headers() {
        let parsed = read::<Ip6>(&v6(&[(0, 0), (60, 3)])).expect("understood");
        assert_eq!((parsed.tuple.sport, parsed.tuple.dport), (0x1234, 53));
        assert_eq!((parsed.transport.offset, parsed.transport.len), (40 + 8 + 32, 8));
        // A chain that leads beyond what is read must not lead anywhere else.
        assert!(read::<Ip6>(&v6(&[(60, 64)])).is_none());
        assert!(read::<Ip6>(&v6(&[(60, 30), (60, 30)])).is_none());
        // Nor to a header of which a part is out of reach.
        let farthest = read::<Ip6>(&v6(&[(60, 55)])).expect("understood");
        assert_eq!(farthest.transport.offset, 40 + 56 * 8);
        assert!(read::<Ip6>(&v6(&[(60, 56)])).is_none());
    }

    #[test]
    fn fragments() {
        let mut packet = v6(&[(44, 0)]);
        assert!(!read::<Ip6>(&packet).expect("whole").transport.is_fragment());
        packet[43] = 1;
        let first = read::<Ip6>(&packet).expect("first");
        assert!(first.transport.is_fragment() && first.transport.more_fragments);
        packet[42..44].copy_from_slice(&(185u16 << 3).to_be_bytes());
        packet[44..48].copy_from_slice(&7u32.to_be_bytes());
        assert!(read::<Ip6>(&packet).is_none());
        let later = Ip6::transport(&Slice::<0>(&packet)).expect("a fragment");
        assert_eq!((later.fragment_offset, later.fragment_id, later.offset), (185, 7, 48));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let within = |offset: usize, len: u32| offset + len as usize <= bytes.len();
            if let Some(v4) = read::<Ip4>(&bytes) {
                prop_assert!(within(v4.transport.offset, v4.transport.len));
            }
            if let Some(v6) = read::<Ip6>(&bytes) {
                prop_assert!(within(v6.transport.offset, v6.transport.len));
            }
        }
    }
}

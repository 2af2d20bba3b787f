//! What differs between IPv4 and IPv6 packets, and nothing else.

use aya_ebpf::bindings::bpf_fib_lookup;
use proxy_common::{
    Addr, DropReason, Ip4, Ip6, Tuple, checksum,
    packet::{
        Transport, Wire,
        headers::{Addrs4, Addrs6, Icmp, Icmp4Answer, Icmp6Answer, Ipv4, Ipv6},
    },
    proto,
};

use crate::{maps::Tables, packet::Packet};

/// An address family as the datapath sees it.
pub trait Network: Tables + Wire {
    /// Length of an IP and an ICMP header, which an answer puts before the quoted packet.
    const ICMP_ANSWER_LEN: u32;

    /// Protocol number of its ICMP.
    const ICMP: u8;
    /// ICMP type of an echo request.
    const ECHO_REQUEST: u8;
    /// ICMP type of an echo reply.
    const ECHO_REPLY: u8;

    /// Writes source and destination, and mends the header checksum by `diff`.
    fn write_addresses<P: Packet>(packet: &P, tuple: &Tuple<Self>, diff: u32) -> Result<(), DropReason>;
    /// Turns the IP header into one for `len` bytes of transport back to the sender.
    fn turn_around<P: Packet>(packet: &P, transport: &Transport<Self>, len: u16) -> Result<(), DropReason>;
    /// Writes IP and ICMP header of "port unreachable" into room opened before the IP
    /// header. `quoted_sum` is the sum of the quoted transport bytes, `quoted_len` their number.
    fn write_unreachable<P: Packet>(packet: &P, quoted_sum: u32, quoted_len: u16) -> Result<(), DropReason>;
    /// Fills in family and addresses.
    fn route_key(params: &mut bpf_fib_lookup, src: &Self, dst: &Self);
}

const DONT_FRAGMENT: u16 = 0x4000;
const TTL: u8 = 64;

impl Network for Ip4 {
    const ICMP_ANSWER_LEN: u32 = size_of::<Icmp4Answer>() as u32;
    const ICMP: u8 = proto::ICMP;
    const ECHO_REQUEST: u8 = 8;
    const ECHO_REPLY: u8 = 0;

    #[inline(always)]
    fn write_addresses<P: Packet>(packet: &P, tuple: &Tuple<Self>, diff: u32) -> Result<(), DropReason> {
        packet.update_l3_checksum(P::L2_LEN + 10, diff)?;
        packet.write(P::L2_LEN + 12, &Addrs4 { src: tuple.src, dst: tuple.dst })
    }

    #[inline(always)]
    fn turn_around<P: Packet>(packet: &P, transport: &Transport<Self>, len: u16) -> Result<(), DropReason> {
        let mut ip = packet.read::<Ipv4>(P::L2_LEN).ok_or(DropReason::RewriteFailed)?;
        let total_len = ((transport.offset - P::L2_LEN) as u16 + len).to_be();
        let fragment = DONT_FRAGMENT.to_be();
        let word = |a: u16, b: u16| u32::from(a) | u32::from(b) << 16;
        let ttl = |ttl: u8| u16::from_ne_bytes([ttl, ip.proto]);
        let diff = checksum::diff(
            &[word(ip.total_len, ip.id), word(ip.fragment, ttl(ip.ttl))],
            &[word(total_len, 0), word(fragment, ttl(TTL))],
        );
        ip.checksum = checksum::update(ip.checksum, diff);
        (ip.total_len, ip.id, ip.fragment, ip.ttl) = (total_len, 0, fragment, TTL);
        (ip.src, ip.dst) = (ip.dst, ip.src);
        packet.write(P::L2_LEN, &ip)
    }

    #[inline(always)]
    fn write_unreachable<P: Packet>(packet: &P, quoted_sum: u32, quoted_len: u16) -> Result<(), DropReason> {
        let quoted_at = P::L2_LEN + size_of::<Icmp4Answer>();
        let quoted = packet.read::<Ipv4>(quoted_at).ok_or(DropReason::RewriteFailed)?;
        let quoted_header = u16::from(quoted.version_ihl & 0xf) * 4;
        let mut ip = Ipv4 {
            version_ihl: 0x45,
            tos: quoted.tos,
            total_len: (size_of::<Icmp4Answer>() as u16 + quoted_header + quoted_len).to_be(),
            id: 0,
            fragment: DONT_FRAGMENT.to_be(),
            ttl: TTL,
            proto: proto::ICMP,
            checksum: 0,
            src: quoted.dst,
            dst: quoted.src,
        };
        ip.checksum = header_checksum(&ip);
        // Destination unreachable, port unreachable (RFC 792). The quoted IP header sums to zero by its
        // own checksum, so only the transport bytes count.
        let head = u32::from(u16::from_ne_bytes([3, 3]));
        let icmp = Icmp { kind: 3, code: 3, checksum: !checksum::fold(head + quoted_sum), unused: 0 };
        packet.write(P::L2_LEN, &Icmp4Answer { ip, icmp })
    }

    #[inline(always)]
    fn route_key(params: &mut bpf_fib_lookup, src: &Self, dst: &Self) {
        params.family = 2; // AF_INET
        params.__bindgen_anon_3.ipv4_src = src.words()[0];
        params.__bindgen_anon_4.ipv4_dst = dst.words()[0];
    }
}

impl Network for Ip6 {
    const ICMP_ANSWER_LEN: u32 = size_of::<Icmp6Answer>() as u32;
    const ICMP: u8 = proto::ICMPV6;
    const ECHO_REQUEST: u8 = 128;
    const ECHO_REPLY: u8 = 129;

    #[inline(always)]
    fn write_addresses<P: Packet>(packet: &P, tuple: &Tuple<Self>, _diff: u32) -> Result<(), DropReason> {
        packet.write(P::L2_LEN + 8, &Addrs6 { src: tuple.src, dst: tuple.dst })
    }

    #[inline(always)]
    fn turn_around<P: Packet>(packet: &P, transport: &Transport<Self>, len: u16) -> Result<(), DropReason> {
        let mut ip = packet.read::<Ipv6>(P::L2_LEN).ok_or(DropReason::RewriteFailed)?;
        ip.payload_len = ((transport.offset - P::L2_LEN) as u16 - 40 + len).to_be();
        ip.hop_limit = TTL;
        (ip.src, ip.dst) = (ip.dst, ip.src);
        packet.write(P::L2_LEN, &ip)
    }

    #[inline(always)]
    fn write_unreachable<P: Packet>(packet: &P, quoted_sum: u32, quoted_len: u16) -> Result<(), DropReason> {
        let quoted_at = P::L2_LEN + size_of::<Icmp6Answer>();
        let quoted = packet.read::<Ipv6>(quoted_at).ok_or(DropReason::RewriteFailed)?;
        let icmp_len = size_of::<Icmp>() as u16 + 40 + quoted_len;
        let ip = Ipv6 {
            version_class_label: quoted.version_class_label,
            payload_len: icmp_len.to_be(),
            next_header: proto::ICMPV6,
            hop_limit: TTL,
            src: quoted.dst,
            dst: quoted.src,
        };
        // Both addresses count twice: in the pseudo header and in the quoted header.
        let addrs = fold_words(ip.src.words()) + fold_words(ip.dst.words());
        let pseudo = u32::from(icmp_len.to_be()) + u32::from(u16::from_ne_bytes([0, proto::ICMPV6]));
        let quoted_head = fold_words(&[quoted.version_class_label])
            + u32::from(quoted.payload_len)
            + u32::from(u16::from_ne_bytes([quoted.next_header, quoted.hop_limit]));
        // Destination unreachable, port unreachable (RFC 4443 §3.1).
        let head = u32::from(u16::from_ne_bytes([1, 4]));
        let sum = 2 * addrs + pseudo + quoted_head + head + quoted_sum;
        let icmp = Icmp { kind: 1, code: 4, checksum: !checksum::fold(sum), unused: 0 };
        packet.write(P::L2_LEN, &Icmp6Answer { ip, icmp })
    }

    #[inline(always)]
    fn route_key(params: &mut bpf_fib_lookup, src: &Self, dst: &Self) {
        params.family = 10; // AF_INET6
        for (i, (src, dst)) in src.words().iter().zip(dst.words()).enumerate() {
            // SAFETY: both unions are sixteen plain bytes seen as four words.
            unsafe {
                params.__bindgen_anon_3.ipv6_src[i] = *src;
                params.__bindgen_anon_4.ipv6_dst[i] = *dst;
            }
        }
    }
}

#[inline(always)]
fn fold_words(words: &[u32]) -> u32 {
    words.iter().fold(0, |sum, word| sum + (word & 0xffff) + (word >> 16))
}

#[inline(always)]
fn header_checksum(ip: &Ipv4) -> u16 {
    // SAFETY: an Ipv4 is five u32 of initialised bytes; the copy has a u32's alignment.
    let words: [u32; 5] = unsafe { core::mem::transmute_copy(ip) };
    !checksum::fold(fold_words(&words))
}

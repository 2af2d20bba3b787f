//! What differs between IPv4 and IPv6 packets, and nothing else.

use core::mem::offset_of;

use aya_ebpf::bindings::bpf_fib_lookup;
use proxy_common::{
    Addr, DropReason, Ip4, Ip6, Tuple, checksum,
    packet::{
        Transport, Wire,
        headers::{Addrs6, Icmp, Icmp4Answer, Icmp6Answer, Ipv4, Ipv4Rest, Ipv6},
    },
    proto,
};

use crate::{maps::Tables, packet::Packet};

/// What an ICMP error says.
#[derive(Clone, Copy)]
pub struct IcmpKind {
    pub kind: u8,
    pub code: u8,
    /// The four bytes after the checksum, as a number.
    pub rest: u32,
}

/// An address family as the datapath sees it.
pub trait Network: Tables + Wire {
    /// Length of an IP and an ICMP header, which an answer puts before the quoted packet.
    const ICMP_ANSWER_LEN: u32;

    /// Length of an IP header without options or extensions.
    const HEADER_LEN: u32;
    /// Protocol number of a packet of this family inside another.
    const ENCAPSULATED: u8;
    /// Protocol number of its ICMP.
    const ICMP: u8;
    /// Nobody listens there.
    const PORT_UNREACHABLE: IcmpKind;
    /// The packet may not be larger than `rest` bytes.
    const PACKET_TOO_BIG: IcmpKind;
    /// ICMP type of an echo request.
    const ECHO_REQUEST: u8;
    /// ICMP type of an echo reply.
    const ECHO_REPLY: u8;

    /// True for an ICMP type that quotes the packet it is about, which is lost.
    fn is_error(kind: u8) -> bool;
    /// Writes source and destination, and mends the header checksum by `diff`.
    fn write_addresses<P: Packet>(packet: &P, tuple: &Tuple<Self>, diff: u32) -> Result<(), DropReason>;
    /// Writes source and destination into a quoted IP header at `at`, whose checksum changes by `diff`.
    /// Returns how the sum of the header's bytes changes.
    fn write_quoted<P: Packet>(
        packet: &P,
        at: usize,
        tuple: &Tuple<Self>,
        diff: u32,
    ) -> Result<u32, DropReason>;
    /// Turns the IP header into one for `len` bytes of transport back to the sender.
    fn turn_around<P: Packet>(packet: &P, transport: &Transport<Self>, len: u16) -> Result<(), DropReason>;
    /// Writes IP and ICMP header of an error into room opened before the IP header.
    /// `quoted_sum` is the sum of the quoted transport bytes, `quoted_len` their number.
    fn write_icmp_error<P: Packet>(
        packet: &P,
        kind: IcmpKind,
        quoted_sum: u32,
        quoted_len: u16,
    ) -> Result<(), DropReason>;
    /// Writes the header of a packet from `src` to `dst` around `inner_len` bytes, into room
    /// opened before the inner header.
    fn write_outer<P: Packet>(packet: &P, src: &Self, dst: &Self, inner_len: u32) -> Result<(), DropReason>;
    /// False for an outer header that [`write_outer`](Self::write_outer) did not write.
    fn may_be_our_outer<P: Packet>(packet: &P) -> bool;
    /// Hops the packet may still take.
    fn hops<P: Packet>(packet: &P) -> Option<u8>;
    /// Takes one hop off; there must be one.
    fn age<P: Packet>(packet: &P) -> Result<(), DropReason>;
    /// Fills in family and addresses.
    fn route_key(params: &mut bpf_fib_lookup, src: &Self, dst: &Self);
}

const DONT_FRAGMENT: u16 = 0x4000;
const TTL: u8 = 64;
/// Identification of outer IPv4 headers. It has no other meaning where DF is set (RFC 6864), and
/// tells them from those of other tunnels, whose inner packets may go to the same addresses.
const OUTER_ID: u16 = 0x7364;

impl Network for Ip4 {
    const ICMP_ANSWER_LEN: u32 = size_of::<Icmp4Answer>() as u32;
    const HEADER_LEN: u32 = size_of::<Ipv4>() as u32;
    const ENCAPSULATED: u8 = proto::IPIP;
    const ICMP: u8 = proto::ICMP;
    const PORT_UNREACHABLE: IcmpKind = IcmpKind { kind: 3, code: 3, rest: 0 };
    const PACKET_TOO_BIG: IcmpKind = IcmpKind { kind: 3, code: 4, rest: 0 };
    const ECHO_REQUEST: u8 = 8;
    const ECHO_REPLY: u8 = 0;

    /// Unreachable, source quench, time exceeded, parameter problem (RFC 792).
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 3 | 4 | 11 | 12)
    }

    #[inline(always)]
    fn write_addresses<P: Packet>(packet: &P, tuple: &Tuple<Self>, diff: u32) -> Result<(), DropReason> {
        write_rest(packet, P::L2_LEN, tuple, diff)
    }

    #[inline(always)]
    fn write_quoted<P: Packet>(
        packet: &P,
        at: usize,
        tuple: &Tuple<Self>,
        diff: u32,
    ) -> Result<u32, DropReason> {
        write_rest(packet, at, tuple, diff)?;
        // What the addresses add, the checksum takes away.
        Ok(0)
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
    fn write_icmp_error<P: Packet>(
        packet: &P,
        kind: IcmpKind,
        quoted_sum: u32,
        quoted_len: u16,
    ) -> Result<(), DropReason> {
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
        // The quoted IP header sums to zero by its own checksum, so only the transport bytes count.
        let icmp = icmp_header(kind, quoted_sum);
        packet.write(P::L2_LEN, &Icmp4Answer { ip, icmp })
    }

    #[inline(always)]
    fn write_outer<P: Packet>(packet: &P, src: &Self, dst: &Self, inner_len: u32) -> Result<(), DropReason> {
        let inner = packet.read::<Ipv4>(P::L2_LEN + size_of::<Ipv4>()).ok_or(DropReason::RewriteFailed)?;
        let mut ip = Ipv4 {
            version_ihl: 0x45,
            tos: inner.tos,
            total_len: length_field(inner_len + Self::HEADER_LEN),
            id: OUTER_ID.to_be(),
            fragment: DONT_FRAGMENT.to_be(),
            ttl: TTL,
            proto: Self::ENCAPSULATED,
            checksum: 0,
            src: *src,
            dst: *dst,
        };
        ip.checksum = header_checksum(&ip);
        packet.write(P::L2_LEN, &ip)
    }

    #[inline(always)]
    fn may_be_our_outer<P: Packet>(packet: &P) -> bool {
        packet.read::<Ipv4>(P::L2_LEN).is_some_and(|ip| u16::from_be(ip.id) == OUTER_ID)
    }

    #[inline(always)]
    fn hops<P: Packet>(packet: &P) -> Option<u8> {
        Some(packet.read::<Ipv4>(P::L2_LEN)?.ttl)
    }

    #[inline(always)]
    fn age<P: Packet>(packet: &P) -> Result<(), DropReason> {
        let at = P::L2_LEN + offset_of!(Ipv4, ttl);
        let old = packet.read::<Ipv4Rest>(at).ok_or(DropReason::RewriteFailed)?;
        let ttl = old.ttl.wrapping_sub(1);
        let word = |ttl| u32::from(u16::from_ne_bytes([ttl, old.proto]));
        let diff = checksum::diff(&[word(old.ttl)], &[word(ttl)]);
        packet.write(at, &Ipv4Rest { ttl, checksum: checksum::update(old.checksum, diff), ..old })
    }

    #[inline(always)]
    fn route_key(params: &mut bpf_fib_lookup, src: &Self, dst: &Self) {
        params.family = 2; // AF_INET
        params.__bindgen_anon_3.ipv4_src = src.words()[0];
        params.__bindgen_anon_4.ipv4_dst = dst.words()[0];
    }
}

/// Writes the addresses into the header at `at`, whose sum changes by `diff`: by one call of the kernel, with the
/// checksum before them. What the one adds, the other takes away, so that sums of the whole packet stay.
#[inline(always)]
fn write_rest<P: Packet>(packet: &P, at: usize, tuple: &Tuple<Ip4>, diff: u32) -> Result<(), DropReason> {
    let at = at + offset_of!(Ipv4, ttl);
    let old = packet.read::<Ipv4Rest>(at).ok_or(DropReason::RewriteFailed)?;
    let checksum = checksum::update(old.checksum, diff);
    packet.write(at, &Ipv4Rest { checksum, src: tuple.src, dst: tuple.dst, ..old })
}

impl Network for Ip6 {
    const ICMP_ANSWER_LEN: u32 = size_of::<Icmp6Answer>() as u32;
    const HEADER_LEN: u32 = size_of::<Ipv6>() as u32;
    const ENCAPSULATED: u8 = proto::IPV6;
    const ICMP: u8 = proto::ICMPV6;
    const PORT_UNREACHABLE: IcmpKind = IcmpKind { kind: 1, code: 4, rest: 0 };
    const PACKET_TOO_BIG: IcmpKind = IcmpKind { kind: 2, code: 0, rest: 0 };
    const ECHO_REQUEST: u8 = 128;
    const ECHO_REPLY: u8 = 129;

    /// Unreachable, too big, time exceeded, parameter problem (RFC 4443).
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 1..=4)
    }

    #[inline(always)]
    fn write_addresses<P: Packet>(packet: &P, tuple: &Tuple<Self>, _diff: u32) -> Result<(), DropReason> {
        packet.write(P::L2_LEN + 8, &Addrs6 { src: tuple.src, dst: tuple.dst })
    }

    #[inline(always)]
    fn write_quoted<P: Packet>(
        packet: &P,
        at: usize,
        tuple: &Tuple<Self>,
        diff: u32,
    ) -> Result<u32, DropReason> {
        packet.write(at + 8, &Addrs6 { src: tuple.src, dst: tuple.dst })?;
        Ok(u32::from(checksum::fold(diff)))
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
    fn write_icmp_error<P: Packet>(
        packet: &P,
        kind: IcmpKind,
        quoted_sum: u32,
        quoted_len: u16,
    ) -> Result<(), DropReason> {
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
        let icmp = icmp_header(kind, 2 * addrs + pseudo + quoted_head + quoted_sum);
        packet.write(P::L2_LEN, &Icmp6Answer { ip, icmp })
    }

    #[inline(always)]
    fn write_outer<P: Packet>(packet: &P, src: &Self, dst: &Self, inner_len: u32) -> Result<(), DropReason> {
        let inner = packet.read::<Ipv6>(P::L2_LEN + size_of::<Ipv6>()).ok_or(DropReason::RewriteFailed)?;
        let ip = Ipv6 {
            version_class_label: inner.version_class_label,
            payload_len: length_field(inner_len),
            next_header: Self::ENCAPSULATED,
            hop_limit: TTL,
            src: *src,
            dst: *dst,
        };
        packet.write(P::L2_LEN, &ip)
    }

    /// An IPv6 header has no room for a mark.
    #[inline(always)]
    fn may_be_our_outer<P: Packet>(_packet: &P) -> bool {
        true
    }

    #[inline(always)]
    fn hops<P: Packet>(packet: &P) -> Option<u8> {
        Some(packet.read::<Ipv6>(P::L2_LEN)?.hop_limit)
    }

    #[inline(always)]
    fn age<P: Packet>(packet: &P) -> Result<(), DropReason> {
        let at = P::L2_LEN + offset_of!(Ipv6, next_header);
        let [next, hops] = packet.read::<u16>(at).ok_or(DropReason::RewriteFailed)?.to_ne_bytes();
        packet.write(at, &u16::from_ne_bytes([next, hops.wrapping_sub(1)]))
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

/// The header of an error; `sum` is that of all else its checksum covers.
#[inline(always)]
fn icmp_header(kind: IcmpKind, sum: u32) -> Icmp {
    let rest = kind.rest.to_be();
    let head = u32::from(u16::from_ne_bytes([kind.kind, kind.code]));
    let sum = checksum::fold(head + (rest & 0xffff) + (rest >> 16) + sum);
    Icmp { kind: kind.kind, code: kind.code, checksum: !sum, unused: rest }
}

/// A length for the wire. A segment train beyond 64 KiB says zero; its segments get their own.
#[inline(always)]
fn length_field(len: u32) -> u16 {
    if len > 0xffff { 0 } else { (len as u16).to_be() }
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

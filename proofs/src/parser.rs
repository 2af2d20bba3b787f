//! The parser reads within the packet and accepts no lengths that contradict each other, whatever the bytes.
//!
//! In three steps, for it has many paths: an IP header is such as [`is_header`] says; with any header that is, a
//! transport header is such as [`is_transport`] says; with any transport that is, what is parsed and quoted is right.

use proxy_common::{
    Addr, Ip4, Ip6,
    packet::{
        Bytes, IpHeader, MAX_OFFSET, MAX_TRANSPORT, Slice, Transport, Wire,
        headers::{Header, Icmp, Ipv4, Ipv6, Sctp, Tcp, Udp},
        parse, quote,
    },
    proto,
};

use crate::symbolic::{any, any_bool, any_header, assume, memory, proofs};

mod chain;
mod one;

/// A frame of any length, any part of which reads as anything.
#[derive(Clone, Copy)]
pub(crate) struct Frame<const L2: usize> {
    len: u32,
    is_gso: bool,
}

impl<const L2: usize> Frame<L2> {
    #[inline(always)]
    pub(crate) fn any() -> Self {
        Self { len: any("frame length"), is_gso: any_bool("is a train of segments") }
    }
}

impl<const L2: usize> Bytes for Frame<L2> {
    const L2_LEN: usize = L2;

    #[inline(always)]
    fn len(&self) -> u32 {
        self.len
    }

    #[inline(always)]
    fn is_gso(&self) -> bool {
        self.is_gso
    }

    /// As the hooks do: nothing beyond the frame, nor beyond what the verifier knows to be in bounds.
    #[inline(always)]
    fn read<T: Header>(&self, offset: usize) -> Option<T> {
        if offset > MAX_OFFSET || offset + size_of::<T>() > self.len as usize {
            return None;
        }
        Some(any_header("header"))
    }
}

/// What holds of every IP header that is read at `at`.
#[inline(always)]
pub(crate) fn is_header<A: Addr>(ip: &IpHeader<A>, at: usize) -> bool {
    let least = if A::VERSION == 4 { 20 } else { 40 };
    let is_in_reach = ip.len <= MAX_TRANSPORT && at + ip.len <= MAX_TRANSPORT;
    is_in_reach && ip.len >= least && ip.total_len <= 65535 + 40 && ip.fragment_offset <= 0x1fff
}

/// What holds of every transport header that is found in a frame.
#[inline(always)]
pub(crate) fn is_transport<A: Addr, const L2: usize>(found: &Transport<A>, frame: &Frame<L2>) -> bool {
    let least = L2 + if A::VERSION == 4 { 20 } else { 40 };
    least <= found.offset
        && found.offset <= MAX_TRANSPORT
        && found.offset as u64 + u64::from(found.len) <= u64::from(frame.len)
        && found.fragment_offset <= 0x1fff
}

/// Any transport header that can be found in the frame.
#[inline(always)]
pub(crate) fn any_transport<A: Addr + crate::symbolic::Plain, const L2: usize>(
    frame: &Frame<L2>,
) -> Transport<A> {
    let found = Transport {
        src: any("source"),
        dst: any("destination"),
        proto: any("protocol"),
        more_fragments: any_bool("more fragments"),
        fragment_offset: any("fragment offset"),
        fragment_id: any("fragment id"),
        offset: any::<u64>("transport offset") as usize,
        len: any("transport length"),
    };
    assume(is_transport(&found, frame));
    found
}

/// An address whose packets have any IP header that is one: what is made of it does not depend on how it was read.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct AnyHeader<A>(A);

impl<A: Addr> Addr for AnyHeader<A> {
    const BITS: u32 = A::BITS;
    const VERSION: u8 = A::VERSION;

    fn words(&self) -> &[u32] {
        self.0.words()
    }

    fn in_prefix(&self, prefix: &Self, len: u32) -> bool {
        self.0.in_prefix(&prefix.0, len)
    }

    fn is_loopback(&self) -> bool {
        self.0.is_loopback()
    }
}

impl<A: Addr> Wire for AnyHeader<A> {
    const ETHER_TYPE: u16 = 0;

    #[inline(always)]
    fn ip_header<P: Bytes>(_: &P, at: usize) -> Option<IpHeader<Self>> {
        let ip = IpHeader {
            src: Self::default(),
            dst: Self::default(),
            proto: any("protocol"),
            more_fragments: any_bool("more fragments"),
            fragment_offset: any("fragment offset"),
            fragment_id: any("fragment id"),
            len: any::<u64>("header length") as usize,
            total_len: any("total length"),
        };
        assume(is_header(&ip, at));
        Some(ip)
    }
}

/// Where an IP header is read: behind the link-layer header, or where a quote may begin.
#[inline(always)]
fn any_place() -> usize {
    let at = any::<u64>("place of the header") as usize;
    assume(at <= MAX_OFFSET);
    at
}

/// A transport header found with any IP header that is one.
#[inline(always)]
fn transport_fits<A: Addr, const L2: usize>() {
    let frame = Frame::<L2>::any();
    let Some(found) = AnyHeader::<A>::transport(&frame) else { return };
    assert!(is_transport(&found, &frame));
}

/// What is accepted of a TCP, UDP or SCTP header.
#[inline(always)]
fn parsed_fits<const L2: usize>() {
    let frame = Frame::<L2>::any();
    let transport = any_transport::<Ip4, L2>(&frame);
    let Some(parsed) = parse(&frame, transport) else { return };
    assert!(parsed.transport.fragment_offset == 0);
    let least = match parsed.tuple.proto {
        proto::TCP => size_of::<Tcp>(),
        proto::UDP => size_of::<Udp>(),
        proto::SCTP => size_of::<Sctp>(),
        _ => panic!("of no protocol that is translated"),
    };
    // The header is whole, in the packet by its own account and in the frame.
    assert!(parsed.transport.len as usize >= least);
    assert!(parsed.transport.offset + least <= frame.len as usize);
    // Whatever is rewritten of it lies where the programs may write.
    assert!(
        parsed.transport.offset + 16 <= MAX_OFFSET && parsed.transport.header() == parsed.transport.offset
    );
}

proofs! {
    /// IPv4: a header that is accepted is whole, has 20 to 60 bytes, and ends where a transport header may begin.
    fn ip_header_v4() {
        let (frame, at) = (Frame::<0>::any(), any_place());
        let Some(ip) = Ip4::ip_header(&frame, at) else { return };
        assert!(is_header(&ip, at) && ip.len <= 60 && ip.len.is_multiple_of(4));
        assert!(at + size_of::<Ipv4>() <= frame.len as usize);
    }

    /// IPv6: the same with up to three extension headers, of which each begins where the one before it ends. It holds of
    /// six: the round for each is the same code, and after two headers what a round begins with may be anything that it may
    /// be at all.
    fn ip_header_v6() {
        let (frame, at) = (chain::Chain::<0>::any(3), any_place());
        let Some(ip) = Ip6::ip_header(&frame, at) else { return };
        assert!(is_header(&ip, at) && ip.len.is_multiple_of(8));
        assert!(at + size_of::<Ipv6>() <= frame.len() as usize);
        // Nothing lies between the last one and the transport header.
        assert!(at + ip.len == frame.end());
    }

    /// A packet that the IP header says is longer than the frame, or shorter than the header, is not accepted: header and
    /// payload lie within the frame. Behind Ethernet, a VLAN tag, and no link-layer header; IPv4 and IPv6.
    /// Assumes: the header is such as ip_header_v4 and ip_header_v6 prove.
    fn transport_is_within_the_frame() {
        match any::<u8>("framing") {
            0 => transport_fits::<Ip4, 0>(),
            1 => transport_fits::<Ip4, 14>(),
            2 => transport_fits::<Ip4, 18>(),
            3 => transport_fits::<Ip6, 0>(),
            4 => transport_fits::<Ip6, 14>(),
            _ => transport_fits::<Ip6, 18>(),
        }
    }

    /// TCP, UDP and SCTP headers that are accepted are whole, by the packet's length and by the frame's.
    /// Assumes: the transport header is found such as transport_is_within_the_frame proves.
    fn parsed_header_is_within_the_packet() {
        match any::<u8>("framing") {
            0 => parsed_fits::<0>(),
            1 => parsed_fits::<14>(),
            _ => parsed_fits::<18>(),
        }
    }

    /// TCP: no data offset of less than the header, or beyond the packet, is accepted.
    /// Assumes: as above.
    fn tcp_data_offset() {
        let tcp: Tcp = any_header("TCP header");
        let (frame, transport) = one::frame::<Ip4, Tcp>(tcp);
        assume(transport.proto == proto::TCP && transport.fragment_offset == 0);
        let data = u32::from(tcp.offset >> 4) * 4;
        let accepted = parse(&frame, transport).is_some();
        assert!(accepted == (20 <= data && data <= transport.len && frame.has(transport.offset, size_of::<Tcp>())));
    }

    /// UDP: no length of less than the header is accepted, nor one beyond the packet but of a first fragment, whose
    /// datagram goes on elsewhere. A train of segments has the length of one, or none.
    /// Assumes: as above.
    fn udp_length() {
        let udp: Udp = any_header("UDP header");
        let (frame, transport) = one::frame::<Ip4, Udp>(udp);
        assume(transport.proto == proto::UDP && transport.fragment_offset == 0);
        let len = u32::from(u16::from_be(udp.len));
        if parse(&frame, transport).is_some() {
            assert!(transport.len >= 8);
            assert!(frame.is_gso() || len >= 8);
            assert!(frame.is_gso() || len <= transport.len || transport.more_fragments);
        }
    }

    /// The quote of an ICMP error: what it names of the quoted packet lies within the error, and where it may be written.
    /// Assumes: as above; the quoted header is such as ip_header_v4 and ip_header_v6 prove.
    fn quote_is_within_the_error() {
        if any_bool("IPv6") { quote_fits::<Ip6>() } else { quote_fits::<Ip4>() }
    }

    /// Bytes in memory, 0 to 4 GiB of them: no header is read beside them, wherever it is asked for.
    fn slice_reads_within() {
        let packet = Slice::<14>(memory(any::<u32>("length") as usize));
        let at = any::<u64>("offset") as usize;
        let is_there = at <= MAX_OFFSET && at + size_of::<Tcp>() <= packet.0.len();
        assert!(packet.read::<Tcp>(at).is_some() == is_there);
    }

    /// The whole parser on bytes in memory, IPv4: nothing is read beside them, and what is accepted lies within them.
    fn slice_is_parsed_within() {
        let packet = Slice::<14>(memory(any::<u32>("length") as usize));
        let Some(transport) = Ip4::transport(&packet) else { return };
        let Some(parsed) = parse(&packet, transport) else { return };
        assert!(parsed.transport.offset as u64 + u64::from(parsed.transport.len) <= packet.0.len() as u64);
    }
}

#[inline(always)]
fn quote_fits<A: Addr + crate::symbolic::Plain>() {
    let frame = Frame::<14>::any();
    let icmp = any_transport::<A, 14>(&frame);
    let end = icmp.offset + icmp.len as usize;
    let any_header = Transport {
        src: AnyHeader(icmp.src),
        dst: AnyHeader(icmp.dst),
        proto: icmp.proto,
        more_fragments: icmp.more_fragments,
        fragment_offset: icmp.fragment_offset,
        fragment_id: icmp.fragment_id,
        offset: icmp.offset,
        len: icmp.len,
    };
    let Some(quote) = quote(&frame, &any_header) else { return };
    assert!(quote.ip == icmp.offset + size_of::<Icmp>() && quote.ip <= MAX_OFFSET);
    assert!(quote.ip < quote.transport && quote.transport + 4 <= end && end <= frame.len as usize);
    assert!(quote.transport <= MAX_TRANSPORT);
    assert!(quote.checksum == 0 || quote.transport < quote.checksum && quote.checksum + 2 <= end);
    assert!(quote.checksum <= MAX_OFFSET);
}

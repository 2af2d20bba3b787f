//! IP header → where the transport header is.

use super::{
    Bytes, MAX_TRANSPORT, bounded,
    headers::{Extension, Fragment6, Ipv4, Ipv6},
};
use crate::{Addr, Ip4, Ip6};

/// What the IP header says of the packet.
///
/// Of a fragment other than the first, `offset` and `len` are those of its payload, and
/// under IPv6 `proto` is what follows the fragment header, which may be an extension.
#[derive(Clone, Copy, Debug)]
pub struct Transport<A> {
    /// Source address.
    pub src: A,
    /// Destination address.
    pub dst: A,
    /// IANA protocol number.
    pub proto: u8,
    /// More fragments follow.
    pub more_fragments: bool,
    /// Where the fragment belongs in its packet, in units of eight bytes.
    pub fragment_offset: u16,
    /// Identification of the fragments of one packet; zero when it is whole.
    pub fragment_id: u32,
    /// Offset from the start of the packet.
    pub offset: usize,
    /// Bytes of transport header and payload, by the IP header.
    pub len: u32,
}

impl<A> Transport<A> {
    /// True if the packet is a part of another. A single fragment that is the whole is not
    /// (RFC 6946).
    #[inline(always)]
    pub fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// `offset`, in bounds that the verifier sees. Of a number that comes from a map, verifiers up to that of 6.1 do
    /// not keep what a comparison has told.
    #[inline(always)]
    pub fn header(&self) -> usize {
        bounded(self.offset)
    }
}

/// An IP header with its extensions.
#[derive(Clone, Copy, Debug)]
pub struct IpHeader<A> {
    /// Source address.
    pub src: A,
    /// Destination address.
    pub dst: A,
    /// What follows.
    pub proto: u8,
    /// More fragments follow.
    pub more_fragments: bool,
    /// Where the fragment belongs in its packet, in units of eight bytes.
    pub fragment_offset: u16,
    /// Identification of the fragments of one packet; zero when it is whole.
    pub fragment_id: u32,
    /// Bytes of the header and its extensions.
    pub len: usize,
    /// Bytes of the whole packet, as the header says; 0 where it does not.
    pub total_len: u32,
}

/// An address family as it stands on the wire.
pub trait Wire: Addr {
    /// EtherType, in host order.
    const ETHER_TYPE: u16;

    /// Reads the IP header at `at`. Nothing for a header that is cut off or none of this family.
    fn ip_header<P: Bytes>(packet: &P, at: usize) -> Option<IpHeader<Self>>;

    /// Finds the transport header. Nothing for a header that is cut off or contradicts the
    /// packet's length.
    #[inline(always)]
    fn transport<P: Bytes>(packet: &P) -> Option<Transport<Self>> {
        let ip = Self::ip_header(packet, P::L2_LEN)?;
        Some(Transport {
            src: ip.src,
            dst: ip.dst,
            proto: ip.proto,
            more_fragments: ip.more_fragments,
            fragment_offset: ip.fragment_offset,
            fragment_id: ip.fragment_id,
            offset: bounded(P::L2_LEN + ip.len),
            len: payload_len(packet, ip.total_len, ip.len as u32)?,
        })
    }
}

const FRAGMENT_OFFSET: u16 = 0x1fff;
const MORE_FRAGMENTS: u16 = 0x2000;

impl Wire for Ip4 {
    const ETHER_TYPE: u16 = 0x0800;

    #[inline(always)]
    fn ip_header<P: Bytes>(packet: &P, at: usize) -> Option<IpHeader<Self>> {
        let ip = packet.read::<Ipv4>(at)?;
        let len = usize::from(ip.version_ihl & 0xf) * 4;
        if ip.version_ihl >> 4 != 4 || len < 20 || at + len > MAX_TRANSPORT {
            return None;
        }
        let fragment = u16::from_be(ip.fragment);
        let is_fragment = fragment & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0;
        Some(IpHeader {
            src: ip.src,
            dst: ip.dst,
            proto: ip.proto,
            more_fragments: fragment & MORE_FRAGMENTS != 0,
            fragment_offset: fragment & FRAGMENT_OFFSET,
            fragment_id: if is_fragment { u32::from(u16::from_be(ip.id)) } else { 0 },
            len,
            total_len: u32::from(u16::from_be(ip.total_len)),
        })
    }
}

/// Extension headers a packet may have before its transport header.
const MAX_EXTENSIONS: u32 = 6;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

impl Wire for Ip6 {
    const ETHER_TYPE: u16 = 0x86dd;

    #[inline(always)]
    fn ip_header<P: Bytes>(packet: &P, at: usize) -> Option<IpHeader<Self>> {
        let ip = packet.read::<Ipv6>(at)?;
        // The header of a quoted packet may end where nothing is read any more.
        if u32::from_be(ip.version_class_label) >> 28 != 6 || at + size_of::<Ipv6>() > MAX_TRANSPORT {
            return None;
        }
        let mut proto = ip.next_header;
        let mut len = 40usize;
        let mut fragment = 0;
        let mut fragment_id = 0;
        for _ in 0..MAX_EXTENSIONS {
            match proto {
                HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                    let ext = packet.read::<Extension>(bounded(at + len))?;
                    proto = ext.next_header;
                    len += usize::from(ext.len) * 8 + 8;
                }
                // A second one would be a fragment of a fragment, which nobody makes.
                FRAGMENT if fragment == 0 => {
                    let header = packet.read::<Fragment6>(bounded(at + len))?;
                    proto = header.next_header;
                    len += size_of::<Fragment6>();
                    fragment = u16::from_be(header.offset_flags);
                    fragment_id = u32::from_be(header.id);
                }
                _ => break,
            }
            if at + len > MAX_TRANSPORT {
                return None;
            }
            if fragment >> 3 != 0 {
                break;
            }
        }
        let total_len = match u32::from(u16::from_be(ip.payload_len)) {
            0 => 0,
            len => len + 40,
        };
        Some(IpHeader {
            src: ip.src,
            dst: ip.dst,
            proto,
            more_fragments: fragment & 1 != 0,
            fragment_offset: fragment >> 3,
            fragment_id,
            len,
            total_len,
        })
    }
}

/// Bytes after the IP header, when the header's idea of the length fits the packet.
#[inline(always)]
fn payload_len<P: Bytes>(packet: &P, total_len: u32, header_len: u32) -> Option<u32> {
    let there = packet.len().checked_sub(P::L2_LEN as u32)?;
    // A segment train beyond 64 KiB says zero (RFC 2675 and the kernel's BIG TCP).
    let total_len = if total_len == 0 && packet.is_gso() { there } else { total_len };
    if total_len > there {
        return None;
    }
    total_len.checked_sub(header_len)
}

//! The answer "nobody here": the packet itself is turned into it and sent back.
//!
//! The kernel may still owe the packet its transport checksum (CHECKSUM_PARTIAL), and a
//! program cannot ask. If so, a device without checksum offload will later overwrite the
//! field with the complement of the sum from the transport header to the end. Both
//! answers are therefore built so that their checksums are right whether that happens
//! or not; each function says how.

use core::mem::offset_of;

use proxy_common::{
    DropReason, checksum,
    packet::{
        Parsed,
        headers::{Ports, Sctp, ShortExtension, Tcp, Udp, tcp_flags},
    },
    proto,
};

use super::{
    conntrack,
    network::{IcmpKind, Network},
    output,
};
use crate::{maps, packet::Buffer};

/// Answers that each CPU gives per second, and in one burst. Enough for every client that
/// errs, too few to multiply a flood.
const ANSWERS_PER_SECOND: u64 = 10_000;

const TCP_LEN: usize = size_of::<Tcp>();

/// Takes one answer from this CPU's budget; false when it is used up.
#[inline(always)]
pub fn within_budget() -> bool {
    const SECOND: u64 = 1_000_000_000;
    let Some(budget) = maps::reject_budget() else { return false };
    let now = conntrack::now();
    let elapsed = now.wrapping_sub(budget.filled);
    let earned = if elapsed >= SECOND { ANSWERS_PER_SECOND } else { elapsed * ANSWERS_PER_SECOND / SECOND };
    if earned > 0 {
        let tokens = budget.tokens + earned;
        budget.tokens = if tokens > ANSWERS_PER_SECOND { ANSWERS_PER_SECOND } else { tokens };
        budget.filled = now;
    }
    if budget.tokens == 0 {
        return false;
    }
    budget.tokens -= 1;
    true
}

/// Turns the packet into a refusal addressed to its sender. False if none may be sent.
#[inline(always)]
pub fn reject<P: Buffer, A: Network>(packet: &P, parsed: &Parsed<A>) -> Result<bool, DropReason> {
    if parsed.tuple.proto == proto::TCP {
        // A reset is never answered (RFC 9293 §3.5.2), and a fragment header would stay in the answer.
        let in_fragments = A::VERSION == 6 && parsed.transport.is_fragment();
        if parsed.tcp_flags & tcp_flags::RST != 0 || in_fragments {
            return Ok(false);
        }
        reset(packet, parsed)?;
    } else {
        return answer(packet, parsed, A::PORT_UNREACHABLE);
    }
    output::swap_macs(packet)?;
    Ok(true)
}

/// Turns the packet into word to its sender that no more than `mtu` bytes get through
/// (RFC 1191, RFC 4443 §3.2). False if none may be sent.
#[inline(always)]
pub fn too_big<P: Buffer, A: Network>(packet: &P, parsed: &Parsed<A>, mtu: u32) -> Result<bool, DropReason> {
    answer(packet, parsed, IcmpKind { rest: mtu, ..A::PACKET_TOO_BIG })
}

/// TCP reset (RFC 9293 §3.5.2).
///
/// The checksum field holds the pseudo header's sum, and the window, which a reset does
/// not use, is chosen so that this is also the right final checksum.
#[inline(always)]
fn reset<P: Buffer, A: Network>(packet: &P, parsed: &Parsed<A>) -> Result<(), DropReason> {
    let at = parsed.transport.header();
    let old = packet.read::<Tcp>(at).ok_or(DropReason::RewriteFailed)?;
    packet.truncate((at + TCP_LEN) as u32)?;
    A::turn_around(packet, &parsed.transport, TCP_LEN as u16)?;
    let acks = parsed.tcp_flags & tcp_flags::ACK != 0;
    let mut rst = Tcp {
        ports: Ports { src: old.ports.dst, dst: old.ports.src },
        seq: if acks { old.ack } else { 0 },
        ack: if acks { 0 } else { end_of_segment(&old, parsed.transport.len) },
        offset: (TCP_LEN as u8 / 4) << 4,
        flags: if acks { tcp_flags::RST } else { tcp_flags::RST | tcp_flags::ACK },
        window: 0,
        checksum: 0,
        urgent: 0,
    };
    let pseudo = pseudo_sum(parsed, TCP_LEN as u16);
    let segment = tcp_words(&rst).iter().fold(0, |sum, word| sum + (word & 0xffff) + (word >> 16));
    // segment + window + 2 · pseudo must vanish modulo 0xffff.
    rst.window = !checksum::fold(segment + 2 * u32::from(pseudo));
    rst.checksum = pseudo;
    packet.write(at, &rst)
}

/// The sequence number after the segment's last, which SYN and FIN count into.
#[inline(always)]
fn end_of_segment(tcp: &Tcp, transport_len: u32) -> u32 {
    let payload = transport_len.wrapping_sub(u32::from(tcp.offset >> 4) * 4);
    let syn = u32::from(tcp.flags & tcp_flags::SYN != 0);
    let fin = u32::from(tcp.flags & tcp_flags::FIN != 0);
    u32::from_be(tcp.seq).wrapping_add(payload).wrapping_add(syn).wrapping_add(fin).to_be()
}

/// Sum of the pseudo header (RFC 9293 §3.1, RFC 8200 §8.1), folded.
#[inline(always)]
fn pseudo_sum<A: Network>(parsed: &Parsed<A>, len: u16) -> u16 {
    let add = |sum, word: &u32| sum + (word & 0xffff) + (word >> 16);
    let sum = parsed.tuple.src.words().iter().fold(0, add);
    let sum = parsed.tuple.dst.words().iter().fold(sum, add);
    let proto = u32::from(u16::from_ne_bytes([0, parsed.tuple.proto]));
    checksum::fold(sum + proto + u32::from(len.to_be()))
}

/// An ICMP or ICMPv6 error that quotes the headers of the packet.
///
/// The quoted TCP or UDP checksum is replaced by minus half the sum of its header, so that
/// the header sums to half of that, and to the same if the kernel completes it.
#[inline(always)]
fn answer<P: Buffer, A: Network>(packet: &P, parsed: &Parsed<A>, kind: IcmpKind) -> Result<bool, DropReason> {
    let at = parsed.transport.header();
    let add = |word: u32| (word & 0xffff) + (word >> 16);
    let after_ip = P::L2_LEN + A::HEADER_LEN as usize;
    let mut extension = ShortExtension { words: [0; 2] };
    if A::VERSION == 6 && at != after_ip {
        // One extension header is quoted, which a fragment has. Nobody needs an answer to more.
        if at != after_ip + size_of::<ShortExtension>() {
            return Ok(false);
        }
        extension = packet.read::<ShortExtension>(after_ip).ok_or(DropReason::RewriteFailed)?;
    }
    let (quoted_len, quoted_sum) = match parsed.tuple.proto {
        proto::UDP => {
            let udp = packet.read::<Udp>(at).ok_or(DropReason::RewriteFailed)?;
            let header = u32::from(udp.ports.src) + u32::from(udp.ports.dst) + u32::from(udp.len);
            let half = half_of(header);
            packet.write(at + offset_of!(Udp, checksum), &!half)?;
            (size_of::<Udp>(), half)
        }
        proto::TCP => {
            let tcp = packet.read::<Tcp>(at).ok_or(DropReason::RewriteFailed)?;
            let half = half_of(
                tcp_words(&tcp).iter().fold(0, |sum, word| sum + add(*word)) + u32::from(!tcp.checksum),
            );
            packet.write(at + offset_of!(Tcp, checksum), &!half)?;
            (size_of::<Tcp>(), half)
        }
        _ => {
            let sctp = packet.read::<Sctp>(at).ok_or(DropReason::RewriteFailed)?;
            let ports = u32::from(sctp.ports.src) + u32::from(sctp.ports.dst);
            (size_of::<Sctp>(), checksum::fold(ports + add(sctp.tag) + add(sctp.checksum)))
        }
    };
    let extension_len = if A::VERSION == 6 { at - after_ip } else { 0 };
    packet.truncate((at + quoted_len) as u32)?;
    packet.open_room(A::ICMP_ANSWER_LEN)?;
    let sum = u32::from(quoted_sum) + add(extension.words[0]) + add(extension.words[1]);
    A::write_icmp_error(packet, kind, sum, (extension_len + quoted_len) as u16)?;
    output::swap_macs(packet)?;
    Ok(true)
}

#[inline(always)]
fn tcp_words(tcp: &Tcp) -> [u32; TCP_LEN / 4] {
    // SAFETY: a Tcp is five u32 of initialised bytes; the copy has a u32's alignment.
    unsafe { core::mem::transmute_copy(tcp) }
}

/// Half of `sum` in arithmetic modulo 65535.
#[inline(always)]
fn half_of(sum: u32) -> u16 {
    let sum = u32::from(checksum::fold(sum));
    // 32768 is the inverse of 2 modulo 65535.
    (if sum & 1 == 0 { sum / 2 } else { (sum + 65535) / 2 }) as u16
}

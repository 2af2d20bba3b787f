//! One tuple out, another in, with every checksum that covers them.

use proxy_common::{
    DropReason, Tuple, checksum, crc32c,
    packet::{
        Parsed,
        headers::{Ports, Sctp},
    },
    proto,
};

use super::network::Network;
use crate::{
    global::global_functions,
    packet::{L4Change, Packet},
};

/// Rewrites the packet from the tuple it has to `new`.
#[inline(always)]
pub fn rewrite<P: Packet, A: Network>(
    packet: &P,
    parsed: &Parsed<A>,
    new: &Tuple<A>,
) -> Result<(), DropReason> {
    let old = &parsed.tuple;
    let at = parsed.transport.header();
    let addresses = addresses_diff(old, new);
    let ports = Ports { src: new.sport.to_be(), dst: new.dport.to_be() };
    let (old_word, new_word) = (ports_word(old), ports_word(new));
    match old.proto {
        proto::SCTP => update_sctp(packet, parsed, old_word ^ new_word)?,
        p => {
            let field = at + if p == proto::TCP { 16 } else { 6 };
            let zero_is_none = p == proto::UDP;
            let ports = if old_word == new_word { 0 } else { checksum::diff(&[old_word], &[new_word]) };
            let change = L4Change { addresses, ports, zero_is_none, ipv6: A::VERSION == 6 };
            packet.update_l4_checksum(field, change)?;
        }
    }
    A::write_addresses(packet, new, addresses)?;
    if old_word != new_word { packet.write(at, &ports) } else { Ok(()) }
}

/// How the sum of the addresses changes.
#[inline(always)]
pub fn addresses_diff<A: Network>(old: &Tuple<A>, new: &Tuple<A>) -> u32 {
    let src = checksum::diff(old.src.words(), new.src.words());
    let dst = checksum::diff(old.dst.words(), new.dst.words());
    u32::from(checksum::fold(src)) + u32::from(checksum::fold(dst))
}

/// Both ports as they lie in memory.
#[inline(always)]
pub fn ports_word<A>(tuple: &Tuple<A>) -> u32 {
    let ([a, b], [c, d]) = (tuple.sport.to_be_bytes(), tuple.dport.to_be_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

/// SCTP covers no addresses, so only a change of ports counts (RFC 9260 §6.8).
#[inline(always)]
fn update_sctp<P: Packet, A: Network>(
    packet: &P,
    parsed: &Parsed<A>,
    ports_xor: u32,
) -> Result<(), DropReason> {
    let at = parsed.transport.header();
    let sctp = packet.read::<Sctp>(at).ok_or(DropReason::RewriteFailed)?;
    // A zero is a checksum the sender's kernel left to the hardware, which computes it after us.
    if sctp.checksum == 0 || ports_xor == 0 {
        return Ok(());
    }
    let len = parsed.transport.len as u16;
    let change = crc32c::port_change(u32::from_le(ports_xor), len, |a, b| shunt_multiply_polynomials(a, b));
    packet.write(at + 8, &(sctp.checksum ^ change.to_le()))
}

global_functions! {
    fn shunt_multiply_polynomials(a: u32, b: u32) = crc32c::multiply;
}

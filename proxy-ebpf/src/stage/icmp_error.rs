//! ICMP errors about translated packets: whoever gets one must find the packet that it sent
//! itself in the quote, or it will not know what the error is about.
//!
//! An error travels against the packet it quotes, as a reply does, and the row for the reply
//! says what to make of it: the reply would become R, so the quoted packet becomes one that R
//! replies to. The error goes where R would go. It comes from whom it came from, unless the
//! row changes the source of replies: then it comes from there, as with the kernel's NAT,
//! because the address of a hop behind the service may be none that the client takes packets
//! from.
//!
//! An error proves nothing about a connection, for anybody can send one: it keeps no row
//! alive and makes none.

use proxy_common::{
    DropReason, Tuple, checksum,
    maps::conntrack::{CtEntry, CtKey, flags},
    packet::{
        Quote, Transport,
        headers::{Icmp, Ports},
        quote,
    },
    proto,
};

use super::{nat, network::Network};
use crate::{maps, packet::Packet};

/// An error about a packet of ours.
pub struct Error<A: 'static> {
    quote: Quote<A>,
    /// The row of the reply to the quoted packet.
    pub entry: &'static CtEntry<A>,
}

impl<A: Network> Error<A> {
    /// What the reply to the quoted packet becomes.
    #[inline(always)]
    fn target(&self) -> Tuple<A> {
        self.entry.target(self.quote.tuple.proto)
    }

    /// Addresses of the error: to whom, and from whom if that changes.
    #[inline(always)]
    pub fn envelope(&self, icmp: &Transport<A>) -> Tuple<A> {
        let target = self.target();
        let same_source = target.src == self.quote.tuple.dst;
        Tuple { src: if same_source { icmp.src } else { target.src }, proto: A::ICMP, ..target }
    }
}

/// The error in this packet, if it is about a packet of ours.
#[inline(always)]
pub fn find<P: Packet, A: Network>(packet: &P, icmp: &Transport<A>, hook: u8) -> Option<Error<A>> {
    if !A::is_error(packet.read::<Icmp>(icmp.header())?.kind) {
        return None;
    }
    let quote = quote(packet, icmp)?;
    if icmp.dst != quote.tuple.src {
        return None;
    }
    let entry = maps::found_row(&CtKey::new(&quote.tuple.reversed(), hook))?;
    // None of its packets has been sent yet.
    if entry.flags & flags::SNAT_PENDING != 0 {
        return None;
    }
    Some(Error { quote, entry })
}

/// Rewrites the error and the packet it quotes, with all their checksums.
#[inline(always)]
pub fn rewrite<P: Packet, A: Network>(
    packet: &P,
    icmp: &Transport<A>,
    error: &Error<A>,
) -> Result<(), DropReason> {
    let quote = &error.quote;
    let (old, new) = (&quote.tuple, error.target().reversed());
    let addresses = nat::addresses_diff(old, &new);
    let ports = checksum::diff(&[nat::ports_word(old)], &[nat::ports_word(&new)]);
    let ports = u32::from(checksum::fold(ports));
    let mut change = ports + update_quoted_checksum(packet, quote, addresses + ports)?;
    packet.write(quote.transport, &Ports { src: new.sport.to_be(), dst: new.dport.to_be() })?;
    change += A::write_quoted(packet, quote.ip, &new, addresses)?;
    let envelope = error.envelope(icmp);
    let outer = nat::addresses_diff(&Tuple { src: icmp.src, dst: icmp.dst, ..envelope }, &envelope);
    // Only ICMPv6 covers the addresses of its own packet (RFC 4443 §2.3).
    if A::VERSION == 6 {
        change += outer;
    }
    let field = icmp.header() + 2;
    let sum = packet.read::<u16>(field).ok_or(DropReason::RewriteFailed)?;
    packet.write(field, &checksum::update(sum, change))?;
    A::write_addresses(packet, &envelope, outer)
}

/// Mends the transport checksum within the quote, if it is there. Returns how the sum of its
/// bytes changes.
#[inline(always)]
fn update_quoted_checksum<P: Packet, A: Network>(
    packet: &P,
    quote: &Quote<A>,
    diff: u32,
) -> Result<u32, DropReason> {
    if quote.checksum == 0 {
        return Ok(0);
    }
    let old = packet.read::<u16>(quote.checksum).ok_or(DropReason::RewriteFailed)?;
    let is_udp = quote.tuple.proto == proto::UDP;
    if is_udp && old == 0 {
        return Ok(0);
    }
    let new = match checksum::update(old, diff) {
        0 if is_udp => 0xffff,
        new => new,
    };
    packet.write(quote.checksum, &new)?;
    Ok(u32::from(!old) + u32::from(new))
}

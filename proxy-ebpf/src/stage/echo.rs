//! A ClusterIP answers ICMP echo, so that `ping` tells whether the address exists.

use proxy_common::{
    checksum,
    maps::settings::flags,
    packet::{Transport, headers::Icmp},
};

use super::{network::Network, output};
use crate::{maps, packet::Packet};

/// The header of an echo request in one piece.
#[inline(always)]
pub fn request<P: Packet, A: Network>(packet: &P, transport: &Transport<A>) -> Option<Icmp> {
    if transport.is_fragment() {
        return None;
    }
    packet.read::<Icmp>(transport.header()).filter(|icmp| (icmp.kind, icmp.code) == (A::ECHO_REQUEST, 0))
}

/// Turns a request into its reply. False if nobody wants that.
#[inline(always)]
pub fn answer<P: Packet, A: Network>(packet: &P, transport: &Transport<A>, mut icmp: Icmp) -> bool {
    if maps::settings().is_none_or(|settings| settings.flags & flags::ANSWER_ECHO == 0) {
        return false;
    }
    let kind = |kind: u8| u32::from(u16::from_ne_bytes([kind, 0]));
    // Source and destination are exchanged in the pseudo header of ICMPv6, which leaves its sum alone.
    let diff = checksum::diff(&[kind(A::ECHO_REQUEST)], &[kind(A::ECHO_REPLY)]);
    icmp.kind = A::ECHO_REPLY;
    icmp.checksum = checksum::update(icmp.checksum, diff);
    packet.write(transport.header(), &icmp).is_ok()
        && A::turn_around(packet, transport, transport.len as u16).is_ok()
        && output::swap_macs(packet).is_ok()
}

//! A ClusterIP answers ICMP echo, so that `ping` tells whether the address exists.

use proxy_common::{
    checksum,
    maps::{frontends::FrontendKey, settings::flags},
    packet::{Transport, headers::Icmp},
};

use super::{network::Network, output};
use crate::{maps, packet::Packet};

/// Turns an echo request to a ClusterIP into its reply. False if it is none.
#[inline(always)]
pub fn answer<P: Packet, A: Network>(packet: &P, transport: &Transport<A>) -> bool {
    let wanted = || {
        let icmp = packet.read::<Icmp>(transport.header())?;
        let settings = maps::settings()?;
        let key = FrontendKey { addr: transport.dst, port: 0, proto: 0, pad: 0 };
        let ours = maps::has_frontend(&key) && maps::node_address(&transport.dst).is_none();
        let request = (icmp.kind, icmp.code) == (A::ECHO_REQUEST, 0);
        (request && ours && settings.flags & flags::ANSWER_ECHO != 0).then_some(icmp)
    };
    let Some(mut icmp) = wanted() else { return false };
    let kind = |kind: u8| u32::from(u16::from_ne_bytes([kind, 0]));
    // Source and destination are exchanged in the pseudo header of ICMPv6, which leaves its sum alone.
    let diff = checksum::diff(&[kind(A::ECHO_REQUEST)], &[kind(A::ECHO_REPLY)]);
    icmp.kind = A::ECHO_REPLY;
    icmp.checksum = checksum::update(icmp.checksum, diff);
    packet.write(transport.header(), &icmp).is_ok()
        && A::turn_around(packet, transport, transport.len as u16).is_ok()
        && output::swap_macs(packet).is_ok()
}

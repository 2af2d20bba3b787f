//! Packet → tuple. What is not understood wholly is not ours: it goes on as it came.

use proxy_common::{Tuple, proto};

use super::network::{Network, Transport};
use crate::packet::{
    Packet,
    headers::{Ports, Sctp, Tcp, Udp},
};

/// A packet of a protocol we translate, with sane lengths.
pub struct Parsed<A> {
    pub tuple: Tuple<A>,
    pub transport: Transport<A>,
    /// Zero for UDP and SCTP.
    pub tcp_flags: u8,
}

#[inline(always)]
pub fn parse<P: Packet, A: Network>(packet: &P, transport: Transport<A>) -> Option<Parsed<A>> {
    let (ports, tcp_flags) = match transport.proto {
        proto::TCP => {
            let tcp = packet.read::<Tcp>(transport.offset)?;
            let header_len = u32::from(tcp.offset >> 4) * 4;
            if header_len < 20 || header_len > transport.len {
                return None;
            }
            (tcp.ports, tcp.flags)
        }
        proto::UDP => {
            let udp = packet.read::<Udp>(transport.offset)?;
            let len = u32::from(u16::from_be(udp.len));
            if !packet.is_gso() && (len < 8 || len > transport.len) {
                return None;
            }
            (udp.ports, 0)
        }
        proto::SCTP => {
            if transport.len < size_of::<Sctp>() as u32 {
                return None;
            }
            (packet.read::<Ports>(transport.offset)?, 0)
        }
        _ => return None,
    };
    let tuple = Tuple {
        src: transport.src,
        dst: transport.dst,
        sport: u16::from_be(ports.src),
        dport: u16::from_be(ports.dst),
        proto: transport.proto,
    };
    Some(Parsed { tuple, transport, tcp_flags })
}

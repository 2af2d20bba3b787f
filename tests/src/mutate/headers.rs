//! Where the headers of an IP packet are, as far as mutations care.

use proxy_common::{checksum, crc32c::crc32c, proto};

use super::{PROTOCOLS, Rng};

/// Positions in a packet that begins with an IP header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    is_v4: bool,
    /// Where the transport header would begin without IPv6 extension headers.
    pub(super) transport: usize,
}

impl Headers {
    /// Nothing if the packet ends within its IP header.
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        let first = *packet.first()?;
        let (is_v4, transport) = match first >> 4 {
            4 => (true, usize::from(first & 0xf).max(5) * 4),
            6 => (false, 40),
            _ => return None,
        };
        (packet.len() > transport).then_some(Self { is_v4, transport })
    }

    /// Total length of IPv4, payload length of IPv6.
    pub(super) fn set_length(self, packet: &mut [u8], length: u16) {
        let at = if self.is_v4 { 2 } else { 4 };
        packet[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }

    pub(super) fn set_protocol(self, packet: &mut [u8], protocol: u8) {
        packet[if self.is_v4 { 9 } else { 6 }] = protocol;
    }

    fn protocol(self, packet: &[u8]) -> u8 {
        packet[if self.is_v4 { 9 } else { 6 }]
    }

    fn addresses(self) -> [std::ops::Range<usize>; 2] {
        if self.is_v4 { [12..16, 16..20] } else { [8..24, 24..40] }
    }

    pub(super) fn turn_around(self, packet: &mut [u8]) {
        let [src, dst] = self.addresses();
        let (old_src, old_dst) = (packet[src.clone()].to_vec(), packet[dst.clone()].to_vec());
        packet[src].copy_from_slice(&old_dst);
        packet[dst].copy_from_slice(&old_src);
        if let Some(ports) = packet.get_mut(self.transport..self.transport + 4) {
            ports.rotate_left(2);
        }
    }

    /// Makes the packet a fragment: first, later, or the whole in one.
    pub(super) fn fragment(self, rng: &mut Rng, packet: &mut Vec<u8>) {
        let offset = if rng.once_in(2) { 0 } else { rng.below(0x2000) as u16 };
        let more = rng.once_in(2);
        if self.is_v4 {
            let field = offset | if more { 0x2000 } else { 0 };
            packet[6..8].copy_from_slice(&field.to_be_bytes());
            return;
        }
        let field = (offset << 3 | u16::from(more)).to_be_bytes();
        let header = [self.protocol(packet), 0, field[0], field[1], 0, 0, 0, rng.number() as u8];
        packet.splice(40..40, header);
        self.set_protocol(packet, 44);
    }

    /// Puts options, or an extension header, before the transport header.
    pub(super) fn extend(self, rng: &mut Rng, packet: &mut Vec<u8>) {
        if self.is_v4 {
            let words = 1 + rng.below(10);
            packet.splice(self.transport..self.transport, vec![1; words * 4]);
            packet[0] = 0x40 | ((self.transport / 4 + words) & 0xf) as u8;
            return;
        }
        let kind = rng.pick(&[0, 43, 44, 51, 60]);
        let eights = if rng.once_in(4) { rng.below(70) } else { rng.below(3) };
        let claimed = if rng.once_in(4) { rng.number() as u8 } else { eights as u8 };
        let mut header = vec![0; 8 + eights * 8];
        (header[0], header[1]) = (self.protocol(packet), claimed);
        packet.splice(40..40, header);
        self.set_protocol(packet, kind);
    }

    /// An IP header of the packet's family and addresses, turned around, before `payload`.
    fn carry(self, packet: &[u8], protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut carrier = packet[..if self.is_v4 { 20 } else { 40 }].to_vec();
        if self.is_v4 {
            carrier[0] = 0x45;
            carrier[6..8].fill(0);
        }
        self.set_protocol(&mut carrier, protocol);
        carrier.extend(payload);
        let carried = Self { transport: if self.is_v4 { 20 } else { 40 }, ..self };
        carried.turn_around_addresses(&mut carrier);
        repair(&mut carrier);
        carrier
    }

    fn turn_around_addresses(self, packet: &mut [u8]) {
        let [src, dst] = self.addresses();
        let old = packet[src.clone()].to_vec();
        packet.copy_within(dst.clone(), src.start);
        packet[dst].copy_from_slice(&old);
    }

    /// An ICMP error that quotes the packet.
    pub(super) fn quote(self, rng: &mut Rng, packet: &[u8]) -> Vec<u8> {
        let any = rng.number() as u8;
        let (protocol, kind) = if self.is_v4 {
            (proto::ICMP, rng.pick(&[3, 3, 4, 5, 11, 12, any]))
        } else {
            (proto::ICMPV6, rng.pick(&[1, 2, 3, 4, 127, any]))
        };
        let mut icmp = vec![kind, rng.below(6) as u8, 0, 0, 0, 0, 0x05, 0x14];
        icmp.extend(&packet[..if rng.once_in(2) { packet.len() } else { rng.below(packet.len()) }]);
        self.carry(packet, protocol, &icmp)
    }

    /// The packet within another, as direct server return sends it, or as it does not.
    pub(super) fn encapsulate(self, rng: &mut Rng, packet: &[u8]) -> Vec<u8> {
        let fitting = if self.is_v4 { 4 } else { 41 };
        let protocol = if rng.once_in(8) { rng.pick(&PROTOCOLS) } else { fitting };
        self.carry(packet, protocol, packet)
    }
}

/// Mends lengths and checksums, as far as the packet has a place for them.
pub(super) fn repair(packet: &mut [u8]) {
    let Some(headers) = Headers::of(packet) else { return };
    let len = packet.len();
    headers.set_length(packet, if headers.is_v4 { len } else { len - 40 } as u16);
    if headers.is_v4 {
        packet[10..12].fill(0);
        let end = headers.transport.min(len);
        let sum = !checksum::fold(checksum::sum(&packet[..end], 0));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let protocol = headers.protocol(packet);
    let addresses: u32 =
        headers.addresses().into_iter().fold(0, |sum, range| checksum::sum(&packet[range], sum));
    let transport = &mut packet[headers.transport..];
    let pseudo = addresses + u32::from(protocol) + transport.len() as u32;
    let (at, start) = match protocol {
        proto::TCP => (16, pseudo),
        proto::UDP => (6, pseudo),
        proto::ICMP => (2, 0),
        proto::ICMPV6 => (2, pseudo),
        proto::SCTP if transport.len() >= 12 => {
            transport[8..12].fill(0);
            let sum = crc32c(transport);
            transport[8..12].copy_from_slice(&sum.to_le_bytes());
            return;
        }
        _ => return,
    };
    if transport.len() < at + 2 {
        return;
    }
    if protocol == proto::UDP {
        let len = transport.len() as u16;
        transport[4..6].copy_from_slice(&len.to_be_bytes());
    }
    transport[at..at + 2].fill(0);
    let sum = !checksum::fold(checksum::sum(transport, checksum::fold(start).into()));
    let sum = if sum == 0 && protocol == proto::UDP { 0xffff } else { sum };
    transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}
